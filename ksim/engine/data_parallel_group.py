"""A data-parallel group: engines that share a mixture's experts step together, and wait for the slowest."""

from collections.abc import Callable, Generator
from typing import Any

import simpy
from attrs import define, field

from ksim.engine.stages import InFlightBatch
from ksim.flow.kernels import KernelCost


def wait(seconds: float) -> KernelCost:
    """The wait of a rank that is done before the others, in their next collective."""
    return KernelCost.of("wait_for_ranks", "wait_for_ranks", seconds, bound="communication", group="data",
                         source="convoy", low=seconds, high=seconds)


@define(eq=False)
class Round:
    """One step of all `size` members: the tokens of each, and when each would be done if it were alone.

    One without work has the tokens of a `dummy` sequence.

    `dummies` log the steps of the members without a batch, once the end of the round is known.
    """

    size: int
    dummy: int
    closed: simpy.Event
    ended: simpy.Event
    tokens: dict[int, int] = field(factory=dict)
    starts: list[float] = field(factory=list)
    ends: dict[int, float] = field(factory=dict)
    dummies: list["Dummy"] = field(factory=list)

    @property
    def tokens_by_rank(self) -> list[int]:
        """The tokens of each member; one without work computes a dummy sequence, as in vLLM."""
        return [*self.tokens.values(), *[self.dummy] * (self.size - len(self.tokens))]

    @property
    def start(self) -> float:
        """When the first GPU began."""
        return min(self.starts)

    @property
    def end(self) -> float:
        """When the slowest member is done."""
        return max(self.ends.values())


#: Logs the dummy step that a member without work computed in a round.
Dummy = Callable[[Round], object]


@define(eq=False)
class DataParallelGroup:
    """`size` engines.  A round begins when all that have work have a batch; the others hold nobody up.

    Those compute a sequence of `dummy` tokens.  `latest` is the batch of the last round's slowest member.
    """

    env: simpy.Environment
    size: int
    dummy: int = 1
    latest: InFlightBatch | None = field(default=None, init=False)
    _active: set[int] = field(factory=set, init=False)
    _members: dict[int, Callable[[], Dummy]] = field(factory=dict, init=False)
    _round: Round = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._round = self._next()

    def _next(self) -> Round:
        return Round(self.size, self.dummy, self.env.event(), self.env.event())

    def enlist(self, member: int, stand_in: Callable[[], Dummy]) -> None:
        """Have *stand_in* called whenever a round closes without a batch of *member*."""
        self._members[member] = stand_in

    def expect(self, member: int) -> None:
        """Wait for *member* in the next round: it has work."""
        self._active.add(member)

    def join(self, member: int, tokens: int) -> Generator[simpy.Event, Any, Round]:
        """Join the next round with a batch of so many *tokens*, and wait until all others have joined."""
        joined = self._round
        self._active.add(member)
        joined.tokens[member] = tokens
        self._close_if_complete()
        yield joined.closed
        return joined

    def rest(self, member: int) -> None:
        """Stop waiting for *member*, which has nothing to compute."""
        self._active.discard(member)
        self._close_if_complete()

    def meet(self, member: int, joined: Round, in_flight: InFlightBatch) -> Generator[simpy.Event, Any, InFlightBatch]:
        """Wait until the slowest member is done: that is when the batch *in_flight* ends."""
        joined.ends[member] = in_flight.end
        joined.starts.append(in_flight.start)
        if len(joined.ends) == len(joined.tokens):
            for dummy in joined.dummies:
                dummy(joined)
            joined.ended.succeed()
        yield joined.ended
        end = joined.end
        self.latest = InFlightBatch(self.env.timeout(end - self.env.now), in_flight.start, end, in_flight.scalings)
        return self.latest

    def _close_if_complete(self) -> None:
        closing = self._round
        if closing.tokens and self._active <= closing.tokens.keys():
            closing.dummies += [stand_in() for member, stand_in in self._members.items()
                                if member not in closing.tokens]
            closing.closed.succeed()
            self._round = self._next()
