"""A run as arrays: the log, read once, for everything that judges it."""

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter

import numpy as np
from attrs import define

from ksim.flow.events import (
    Admitted,
    Arrived,
    Emitted,
    EngineBuilt,
    Event,
    Finished,
    Preempted,
    Received,
    Rejected,
    Routed,
)
from ksim.flow.log import Columns, Log
from ksim.results.arrays import Floats, each, floats, sums
from ksim.results.requests import Requests
from ksim.results.steps import Steps

KINDS = (Arrived, Rejected, Routed, Received, Admitted, Preempted, Emitted, Finished)


@define(eq=False, slots=False)
class History:
    """The steps and requests of a run, and what follows from both; times in seconds from its start."""

    log: Log

    @cached_property
    def engines(self) -> list[EngineBuilt]:
        return sorted(self.log.engines, key=attrgetter("engine"))

    @cached_property
    def events(self) -> dict[type[Event], Columns]:
        """The events of each kind but steps as columns, in time order."""
        return {kind: self.log.columns(kind) for kind in KINDS}

    @cached_property
    def steps(self) -> Steps:
        return Steps(self.engines, self.log.step_blocks, self.log.before)

    @cached_property
    def requests(self) -> Requests:
        return Requests(self.events, self.steps)

    @cached_property
    def duration(self) -> float:
        """Seconds from the start of the run to its last event."""
        times = [float(columns["time"].max(initial=0.0)) for columns in self.events.values()]
        return max(*times, float(self.steps.time.max(initial=0.0)))

    @cached_property
    def gpus(self) -> int:
        return sum(built.ranks * built.stages for built in self.engines)

    @cached_property
    def static_watts(self) -> float:
        """What all GPUs draw together while they are awake and do nothing."""
        return float(sum(built.static_watts * built.ranks * built.stages for built in self.engines))

    @cached_property
    def naps(self) -> Floats:
        """For how many seconds before each step the GPUs of its engine slept."""
        steps = self.steps
        return np.maximum(0.0, steps.start - steps.ahead - steps.per_engine("sleep_after"))

    @cached_property
    def last_naps(self) -> Floats:
        """For how many seconds the GPUs of each engine slept at the end of the run."""
        ended = [float(self.steps.ended[self.steps.rows(place)].max(initial=0.0)) for place in range(len(self.engines))]
        return np.maximum(0.0, self.duration - np.array(ended) - floats(self.engines, "sleep_after"))

    @cached_property
    def static_joules(self) -> float:
        """What all GPUs drew in any case, asleep or awake."""
        asleep = sums(self.steps.engine, self.naps, len(self.engines)) + self.last_naps
        return static_joules(self.engines, asleep, self.duration)

    @cached_property
    def host_gaps(self) -> Floats:
        """Seconds before each step in which the engine had work and its GPUs waited for the CPU.

        They wait since the engine's earlier steps ended, or since the oldest
        request that still has work came to it, whichever is later.
        """
        gaps, steps, waiting_since = np.zeros(len(self.steps)), self.steps, self._oldest_work()
        for place in range(len(self.engines)):
            rows = steps.rows(place)
            oldest = np.minimum.accumulate(waiting_since[rows][::-1])[::-1]
            gaps[rows] = np.maximum(0.0, steps.start[rows] - np.maximum(steps.ahead[rows], oldest))
        return gaps

    @cached_property
    def host_waits(self) -> Floats:
        """Seconds before and in each step in which its GPUs waited for the CPU."""
        return self.host_gaps + self.steps.launch_waits

    def _oldest_work(self) -> Floats:
        """For each step: when the oldest request came whose work ends with this step; inf where none does."""
        requests, oldest = self.requests, np.full(len(self.steps), np.inf)
        unfinished = ~requests.completed & np.isnan(requests.rejected)
        # What did not finish has work up to its engine's last step.
        ends = np.where(unfinished, self.steps.first[requests.engine + 1] - 1, requests.last_step)
        known = (requests.engine >= 0) & (ends >= self.steps.first[requests.engine])
        np.minimum.at(oldest, ends[known], requests.reached[known])
        return oldest

    @cached_property
    def idle_after(self) -> Floats:
        """Seconds after each step in which its engine had nothing to do, up to its next step or the end."""
        idle, steps = np.zeros(len(self.steps)), self.steps
        for place in range(len(self.engines)):
            rows = steps.rows(place)
            following = np.concatenate([(steps.start - self.host_gaps)[rows][1:], [self.duration]])
            idle[rows] = np.maximum(0.0, following - steps.ended[rows])
        return idle

    @cached_property
    def busy_gpu_seconds(self) -> float:
        return float(self.steps.gpu_seconds.sum())


def static_joules(engines: Sequence[EngineBuilt], asleep: Floats, duration: float) -> float:
    """What the GPUs of *engines* draw in *duration* seconds in any case, *asleep* for so many of them."""
    gpus = each(engines, lambda engine: engine.ranks * engine.stages)
    saved = floats(engines, "static_watts") - floats(engines, "sleep_watts")
    slept = np.where(asleep > 0, asleep * saved, 0.0) * gpus
    return float(floats(engines, "static_watts") @ gpus) * duration - float(slept.sum())
