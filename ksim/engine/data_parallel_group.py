"""A data-parallel group: engines that share a mixture's experts step together, and wait for the slowest."""

from collections.abc import Callable, Generator
from typing import Any

import simpy
from attrs import define, field

from ksim.engine.stages import InFlightBatch
from ksim.flow.kernels import KernelCost


def wait(seconds: float) -> KernelCost:
    """What a rank does that is through before the others: it waits in their next collective."""
    return KernelCost.of("wait_for_ranks", "wait_for_ranks", seconds, bound="communication", group="data",
                         source="convoy", low=seconds, high=seconds)


@define(eq=False)
class Round:
    """One step of all `size` members: what each brings, and when it would be through if it were alone.

    `dummies` are called, once all that brought something are known to be through, for those that brought nothing.
    """

    size: int
    closed: simpy.Event
    ended: simpy.Event
    tokens: dict[int, int] = field(factory=dict)
    starts: list[float] = field(factory=list)
    ends: dict[int, float] = field(factory=dict)
    dummies: list["Dummy"] = field(factory=list)

    @property
    def tokens_by_rank(self) -> list[int]:
        """The tokens of each; members without work compute a dummy of one, as in vLLM."""
        return [*self.tokens.values(), *[1] * (self.size - len(self.tokens))]

    @property
    def start(self) -> float:
        """When the first GPU began with it."""
        return min(self.starts)

    @property
    def end(self) -> float:
        """When the slowest member is through."""
        return max(self.ends.values())


#: Writes down the dummy step that a member without work computed in a round.
Dummy = Callable[[Round], object]


@define(eq=False)
class DataParallelGroup:
    """`size` engines.  A round begins when all that have work have a batch; those without hold nobody up.

    `latest` is the batch of the last round's slowest member.
    """

    env: simpy.Environment
    size: int
    latest: InFlightBatch | None = field(default=None, init=False)
    _active: set[int] = field(factory=set, init=False)
    _members: dict[int, Callable[[], Dummy]] = field(factory=dict, init=False)
    _round: Round = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._round = self._next()

    def _next(self) -> Round:
        return Round(self.size, self.env.event(), self.env.event())

    def enlist(self, member: int, stand_in: Callable[[], Dummy]) -> None:
        """Have *stand_in* called whenever a round closes to which *member* brought nothing."""
        self._members[member] = stand_in

    def expect(self, member: int) -> None:
        """Wait for *member*, which has got work."""
        self._active.add(member)

    def join(self, member: int, tokens: int) -> Generator[simpy.Event, Any, Round]:
        """Bring *tokens*, and wait until all others have brought theirs."""
        joined = self._round
        self._active.add(member)
        joined.tokens[member] = tokens
        self._close_if_complete()
        yield joined.closed
        return joined

    def rest(self, member: int) -> None:
        """Have nothing to compute for now."""
        self._active.discard(member)
        self._close_if_complete()

    def meet(self, member: int, joined: Round, in_flight: InFlightBatch) -> Generator[simpy.Event, Any, InFlightBatch]:
        """Learn when all are through, for that is when the batch *in_flight* is."""
        joined.ends[member] = in_flight.end
        joined.starts.append(in_flight.start)
        if len(joined.ends) == len(joined.tokens):
            for dummy in joined.dummies:
                dummy(joined)
            joined.ended.succeed()
        yield joined.ended
        end = joined.end
        self.latest = InFlightBatch(self.env.timeout(end - self.env.now), in_flight.start, end, in_flight.paces)
        return self.latest

    def _close_if_complete(self) -> None:
        closing = self._round
        if closing.tokens and self._active <= closing.tokens.keys():
            closing.dummies += [stand_in() for member, stand_in in self._members.items()
                                if member not in closing.tokens]
            closing.closed.succeed()
            self._round = self._next()
