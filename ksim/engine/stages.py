"""Pipeline stages: batches go through them in order, one at a time in each stage."""

from collections.abc import Generator, Sequence
from typing import Any, Protocol

import simpy
from attrs import define, field

from ksim.cost.clock import FREE, Clock, Setting
from ksim.engine.rank_group import RankGroup
from ksim.engine.workers import LaunchTimes
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.flow.steps import StepCost

Process = Generator[simpy.Event, Any, None]


@define(eq=False)
class InFlightBatch:
    """A batch on the GPUs: `done` fires when the last stage has computed it; `scalings` are those of its stages."""

    done: simpy.Event
    start: float = 0.0
    end: float = 0.0
    scalings: tuple[ClockScaling, ...] = ()


class Stages(Protocol):
    clocks: Sequence[Clock]

    def launch(self, step_costs: Sequence[StepCost], launches: Sequence[LaunchTimes],
               source: InFlightBatch | None = None, settings: Sequence[Setting] = ()) -> InFlightBatch:
        """Send a batch through the stages, with a step_cost for each; it needs the tokens that *source* samples.

        *settings* are the caps and clocks that the GPUs of each stage keep to, if there are any.  A stage begins when
        its inputs are prepared, and does not end before its last kernel is launched.
        """
        ...


@define(eq=False)
class WholeSteps:
    """`detail = "step"`: the times of a batch in the stages are worked out by arithmetic; its end is one event.

    `clocks` are the SM clocks of each stage's GPUs, where a power limit applies.
    """

    env: simpy.Environment
    stages: int
    clocks: Sequence[Clock] = ()
    _free: list[float] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = [0.0] * self.stages

    def launch(self, step_costs: Sequence[StepCost], launches: Sequence[LaunchTimes],
               source: InFlightBatch | None = None, settings: Sequence[Setting] = ()) -> InFlightBatch:
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


@define(eq=False)
class KernelByKernel:
    """`detail = "kernel"`: every stage is a process, and so is every rank in it."""

    env: simpy.Environment
    rank_groups: Sequence[RankGroup]
    clocks: Sequence[Clock] = ()
    _queues: list[simpy.Store] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._queues = [simpy.Store(self.env) for _ in self.rank_groups]
        for stage in range(len(self.rank_groups)):
            self.env.process(self._stage(stage))

    def launch(self, step_costs: Sequence[StepCost], launches: Sequence[LaunchTimes],
               source: InFlightBatch | None = None, settings: Sequence[Setting] = ()) -> InFlightBatch:
        in_flight = InFlightBatch(self.env.event())
        self._queues[0].put((in_flight, step_costs, launches, source, settings))
        return in_flight

    def _stage(self, stage: int) -> Process:
        while True:
            in_flight, step_costs, launches, source, settings = yield self._queues[stage].get()
            if stage == 0 and source is not None:
                yield source.done
            yield from self._until(launches[stage].prepared)
            if stage == 0:
                in_flight.start = self.env.now
            setting = settings[stage] if settings else FREE
            pace = self.clocks[stage].pace(step_costs[stage], self.env.now, setting) if self.clocks else AT_BOOST
            in_flight.scalings += (pace,)
            yield self.rank_groups[stage].play(step_costs[stage], pace)
            yield from self._until(launches[stage].launched)
            if stage + 1 < len(self.rank_groups):
                self._queues[stage + 1].put((in_flight, step_costs, launches, source, settings))
            else:
                in_flight.end = self.env.now
                in_flight.done.succeed()

    def _until(self, moment: float) -> Process:
        if moment > self.env.now:
            yield self.env.timeout(moment - self.env.now)
