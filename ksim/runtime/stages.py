"""Pipeline stages: batches go through them in order, one at a time in each."""

from collections.abc import Generator, Sequence
from typing import Any, Protocol

import simpy
from attrs import define, field

from ksim.flow.timeline import Timeline
from ksim.runtime.ranks import Gang


@define(eq=False)
class Flight:
    """A batch on the GPUs: `done` fires when the last stage has it behind itself."""

    done: simpy.Event
    start: float = 0.0
    end: float = 0.0


class Stages(Protocol):
    def launch(self, timelines: Sequence[Timeline], source: Flight | None = None) -> Flight:
        """Send a batch on its way, one timeline for each stage; it computes on the tokens that *source* samples."""
        ...


@define(eq=False)
class WholeSteps:
    """`detail = "step"`: a batch's way through the stages is arithmetic, and its end one event."""

    env: simpy.Environment
    stages: int
    _free: list[float] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = [0.0] * self.stages

    def launch(self, timelines: Sequence[Timeline], source: Flight | None = None) -> Flight:
        now = self.env.now
        end = start = max(now, self._free[0], source.end if source else now)
        for stage, timeline in enumerate(timelines):
            end = max(end, self._free[stage]) + timeline.seconds
            self._free[stage] = end
        return Flight(self.env.timeout(end - now), start, end)


@define(eq=False)
class KernelByKernel:
    """`detail = "kernel"`: every stage is a process, and so is every rank in it."""

    env: simpy.Environment
    gangs: Sequence[Gang]
    _queues: list[simpy.Store] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._queues = [simpy.Store(self.env) for _ in self.gangs]
        for stage in range(len(self.gangs)):
            self.env.process(self._stage(stage))

    def launch(self, timelines: Sequence[Timeline], source: Flight | None = None) -> Flight:
        flight = Flight(self.env.event())
        self._queues[0].put((flight, timelines, source))
        return flight

    def _stage(self, stage: int) -> Generator[simpy.Event, Any, None]:
        while True:
            flight, timelines, source = yield self._queues[stage].get()
            if stage == 0:
                if source is not None:
                    yield source.done
                flight.start = self.env.now
            yield self.gangs[stage].play(timelines[stage])
            if stage + 1 < len(self.gangs):
                self._queues[stage + 1].put((flight, timelines, source))
            else:
                flight.end = self.env.now
                flight.done.succeed()
