"""The GPUs of an engine: pipeline stages, through which batches go in order.

Where all ranks of a stage are alike, a step takes the stage as long as it costs, which is worked out ahead; where they
differ, they are SimPy processes (`ksim.engine.rank_processes`).  Engines that share a mixture's experts are a
data-parallel group: they step together, and wait for the slowest.  Workers are the host's threads that prepare a step's
inputs and launch its kernels, one for each pipeline stage.
"""

from collections.abc import Callable, Generator, Hashable, Sequence
from functools import cached_property
from typing import Any, Protocol

import simpy
from attrs import define, field, frozen

from ksim.cost.energy import FREE, Clock, Setting
from ksim.flow.batch import Batch, Offsets
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.flow.steps import KernelCost, StepCost
from ksim.specs.host import Worker


@frozen
class LaunchTimes:
    """When a step's inputs are prepared, and when the last of its kernels is launched."""

    prepared: float
    launched: float


@define(eq=False)
class Workers:
    """Each works off the steps in order, one at a time."""

    costs: Worker
    _free: list[float] = field(factory=list, init=False)

    @property
    def free(self) -> float:
        """When the worker of the first stage has worked off all steps so far."""
        return self._free[0] if self._free else 0.0

    def launch(self, batch: Batch, step_costs: Sequence[StepCost], ready: float,
               pace: float = 1.0) -> list[LaunchTimes]:
        """Have every stage's worker prepare and launch its part of a step that is known to them at *ready*.

        They take *pace* times as long as their costs say.
        """
        self._free += [0.0] * (len(step_costs) - len(self._free))
        prepare = pace * self.costs.preparing(batch.sequences)
        launches = []
        for stage, step_cost in enumerate(step_costs):
            prepared = max(ready, self._free[stage]) + prepare
            self._free[stage] = prepared + pace * step_cost.launch_seconds
            launches.append(LaunchTimes(prepared, self._free[stage]))
        return launches


@define(eq=False)
class InFlightBatch:
    """A batch on the GPUs: `done` fires when the last stage has computed it; `scalings` are those of its stages.

    `waits` are the seconds by which the last stages took longer than a step costs, since ranks waited for others.
    """

    done: simpy.Event
    start: float = 0.0
    end: float = 0.0
    scalings: tuple[ClockScaling, ...] = ()
    waits: tuple[float, ...] = ()


#: The batch of steps that are given by their costs alone.
NOTHING = Batch.of()


class Stages(Protocol):
    def launch(self, step_costs: Sequence[StepCost], launches: Sequence[LaunchTimes],
               source: InFlightBatch | None = None, settings: Sequence[Setting] = (), batch: Batch = NOTHING,
               tokens_by_rank: Sequence[int] = ()) -> InFlightBatch:
        """Send a *batch* through the stages, with a step_cost for each; it needs the tokens that *source* samples.

        *settings* are the caps and clocks that the GPUs of each stage keep to, if there are any.  A stage begins when
        its inputs are prepared, and does not end before its last kernel is launched.  All engines that share experts
        have *tokens_by_rank*.
        """
        ...


@define(eq=False)
class WholeSteps:
    """Stages whose ranks are alike: the times of a batch in them are worked out by arithmetic; its end is one event.

    `clocks` are the SM clocks of each stage's GPUs, where a power limit applies.
    """

    env: simpy.Environment
    stages: int
    clocks: Sequence[Clock] = ()
    _free: list[float] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = [0.0] * self.stages

    def launch(self, step_costs: Sequence[StepCost], launches: Sequence[LaunchTimes],
               source: InFlightBatch | None = None, settings: Sequence[Setting] = (), batch: Batch = NOTHING,
               tokens_by_rank: Sequence[int] = ()) -> InFlightBatch:
        start, scalings = 0.0, []
        end = max(self.env.now, source.end if source else 0.0)
        for stage, (step_cost, launch) in enumerate(zip(step_costs, launches, strict=True)):
            begin = max(end, self._free[stage], launch.prepared)
            setting = settings[stage] if settings else FREE
            pace = self.clocks[stage].pace(step_cost, begin, setting) if self.clocks else AT_BOOST
            end = self._free[stage] = max(begin + step_cost.seconds_at(pace), launch.launched)
            start = start if stage else begin
            scalings.append(pace)
        return InFlightBatch(self.env.timeout(end - self.env.now), start, end, tuple(scalings))

    def hold(self, end: float, late: float) -> None:
        """Keep the only stage busy until *end*; if there are several, let each be free *late* seconds later."""
        self._free = [max(end, *self._free)] if self.stages == 1 else [free + late for free in self._free]


def wait(seconds: float) -> KernelCost:
    """The wait of a rank that is done before the others, in their next collective."""
    return KernelCost.of("wait_for_ranks", "wait_for_ranks", seconds, bound="communication", group="data",
                         source="convoy", low=seconds, high=seconds)


@define(eq=False)
class Round:
    """One step of all `size` members: the tokens of each, and when each would be done if it were alone.

    One without work has the tokens of a `dummy` sequence.

    `dummies` log the steps of the members without a batch, once the end of the round is known.  Their costs
    (`dummy_costs`) are worked out once for all timers with the same prices; those that are equal in all that is logged
    are one step (`idle`).
    """

    size: int
    dummy: int
    closed: simpy.Event
    ended: simpy.Event
    tokens: dict[int, int] = field(factory=dict)
    starts: list[float] = field(factory=list)
    ends: dict[int, float] = field(factory=dict)
    dummies: list["Dummy"] = field(factory=list)
    dummy_costs: dict[Hashable, tuple[Any, ...]] = field(factory=dict)
    idle: dict[Hashable, Any] = field(factory=dict)

    @cached_property
    def tokens_by_rank(self) -> Offsets:
        """The tokens of each member, once all have joined; one without work computes a dummy sequence, as in vLLM."""
        return Offsets((*self.tokens.values(), *[self.dummy] * (self.size - len(self.tokens))))

    @cached_property
    def start(self) -> float:
        """When the first GPU began, once all have launched their batches."""
        return min(self.starts)

    @cached_property
    def end(self) -> float:
        """When the slowest member is done, once all have launched their batches."""
        return max(self.ends.values())


#: Logs the dummy step that a member without work computed in a round.
Dummy = Callable[[Round], object]


@define(eq=False)
class DataParallelGroup:
    """`size` engines.  A round begins when all that have work have a batch; the others hold nobody up.

    Those compute a sequence of `dummy` tokens.  `latest` is the batch of the last round's slowest member.  One
    `recorder` (`ksim.engine.stage_recorder`) may log the steps of all.
    """

    env: simpy.Environment
    size: int
    dummy: int = 1
    recorder: Any = None
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
        self.latest = InFlightBatch(self.env.timeout(end - self.env.now), in_flight.start, end, in_flight.scalings,
                                    (end - in_flight.end,))
        return self.latest

    def _close_if_complete(self) -> None:
        closing = self._round
        if closing.tokens and self._active <= closing.tokens.keys():
            closing.dummies += [stand_in() for member, stand_in in self._members.items()
                                if member not in closing.tokens]
            closing.closed.succeed()
            self._round = self._next()
