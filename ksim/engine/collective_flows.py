"""The collectives between nodes of engines, as flows: they share links with transfers, and make steps longer."""

from collections.abc import Callable, Hashable, Sequence

import simpy
from attrs import define, field

from ksim.compute.graph import Collective
from ksim.cost.step import Timer
from ksim.engine.engine import Process
from ksim.engine.ranks import InFlightBatch, WholeSteps
from ksim.flow.batch import Batch
from ksim.network.flows import Flows
from ksim.network.network import CollectiveTraffic, InterNodeTraffic

__all__ = ["CollectiveFlows", "GroupStep"]


@define(eq=False)
class GroupStep:
    """A step of an engine, or of all engines of a data-parallel group: its batches end together.

    Its collectives are one flow, which begins when the first batch does.
    """

    traffic: InterNodeTraffic | None
    done: simpy.Event
    batches: list[InFlightBatch] = field(factory=list)

    @property
    def start(self) -> float:
        return min(batch.start for batch in self.batches)

    @property
    def end(self) -> float:
        return max(batch.end for batch in self.batches)

    def shift(self, late: float) -> None:
        """Have the step begin and end *late* seconds later."""
        for batch in self.batches:
            batch.start += late
        self.extend(late)

    def extend(self, late: float) -> None:
        """Have the step end *late* seconds later."""
        for batch in self.batches:
            batch.end += late


@define(eq=False)
class CollectiveFlows:
    """The collectives between nodes of an engine, or of a data-parallel group, among the `flows` of a fleet.

    A step ends later by as much as the flow of its collectives ends later than alone.  The next step of a single stage
    waits for that.  In a pipeline, the steps behind it end as much later.
    """

    env: simpy.Environment
    flows: Flows
    collective_traffic: CollectiveTraffic
    _stages: list[WholeSteps] = field(factory=list, init=False)
    _steps: list[GroupStep] = field(factory=list, init=False)
    _rounds: dict[int, GroupStep] = field(factory=dict, init=False)
    _known: dict[Hashable, InterNodeTraffic | None] = field(factory=dict, init=False)

    def enlist(self, stages: WholeSteps) -> None:
        """Delay the batches in *stages*, too."""
        self._stages.append(stages)

    def traffic(self, timers: Sequence[Timer], batch: Batch, tokens_by_rank: Sequence[int]) -> InterNodeTraffic | None:
        """What a step of *batch* sends between nodes; None if it sends nothing."""
        key = tuple(timer.traffic_key(batch, tokens_by_rank) for timer in timers)
        if key not in self._known:
            parts = [part for timer in timers for part in self._sent(timer, batch, tokens_by_rank)]
            self._known[key] = InterNodeTraffic.together(parts) if parts else None
        return self._known[key]

    def _sent(self, timer: Timer, batch: Batch, tokens_by_rank: Sequence[int]) -> list[InterNodeTraffic]:
        launches = [(launch, repeat) for launch, _, repeat in timer.launches(batch, tokens_by_rank)
                    if isinstance(launch, Collective)]
        parts = [(self.collective_traffic.of(launch, timer.groups[launch.group]), repeat)
                 for launch, repeat in launches]
        return [traffic for traffic, repeat in parts if traffic is not None for _ in range(repeat)]

    def track(self, in_flight: InFlightBatch, traffic: Callable[[], InterNodeTraffic | None],
              together: object = None) -> InFlightBatch:
        """Have *in_flight* end when its collectives have, whose *traffic* is that; those of a round *together* are one
        flow, that of the first batch."""
        step = self._rounds.get(id(together)) if together is not None else None
        if step is None:
            step = GroupStep(traffic(), self.env.event())
            if together is not None:
                self._rounds[id(together)] = step
            before = self._steps[-1] if self._steps and self._single else None
            self.env.process(self._follow(step, together, before))
            self._steps.append(step)
        tracked = InFlightBatch(step.done, in_flight.start, in_flight.end, in_flight.scalings, in_flight.waits)
        step.batches.append(tracked)
        return tracked

    def _follow(self, step: GroupStep, together: object, before: GroupStep | None) -> Process:
        """Begin the flow with the step, and end the step with the flow."""
        env, traffic = self.env, step.traffic
        if before is not None:
            if not before.done.triggered:
                yield before.done
            step.shift(max(before.end - step.start, 0.0))
        if traffic is not None:
            while env.now < step.start:
                yield env.timeout(step.start - env.now)
            flow = self.flows.start(traffic.size, traffic.path, traffic.cap, traffic.weights)
            yield flow.done
            if late := traffic.late(flow):
                self._delay(step, late)
        while env.now < step.end:
            yield env.timeout(step.end - env.now)
        self._steps.remove(step)
        self._rounds.pop(id(together), None)
        step.done.succeed()

    @property
    def _single(self) -> bool:
        return all(stages.stages == 1 for stages in self._stages)

    def _delay(self, step: GroupStep, late: float) -> None:
        """Have *step* end *late*, and in a pipeline what is in flight behind it."""
        step.extend(late)
        if not self._single:
            for behind in self._steps[self._steps.index(step) + 1:]:
                behind.extend(late)
        for stages in self._stages:
            stages.hold(step.end, late)
