"""Recorded batches through the step model alone: how long until the scheduler is called again?"""

from attrs import frozen

from ksim.cost.clock import Clock
from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch
from ksim.foundation.errors import ConfigError
from ksim.runtime.workers import Workers
from ksim.specs.host import Host
from ksim.studies.assembly import Site
from ksim.studies.sizing import limits
from ksim.studies.validation.serving.recordings import Run, Scheduled


@frozen
class Interval:
    """Seconds from one call of the scheduler to the next, of a step of so many `tokens` and `decodes`."""

    tokens: int
    decodes: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Per cent, signed."""
        return 100.0 * (self.predicted / self.measured - 1.0)


def intervals(site: Site, run: Run) -> tuple[list[Interval], int]:
    """The intervals of *run*, each from what was recorded up to its beginning, and how many could not be told.

    A turn of the engine's loop makes a batch and launches it, and waits for the oldest once enough are in flight.  What
    cannot be told is how long an engine without work waits for the next request.  Raises ConfigError for pipelines.
    """
    timers, host, power = site.timers(), site.host, site.gpu.power
    if len(timers) > 1:
        raise ConfigError("pipeline_parallel_size", "steps of several stages cannot be played one by one")
    depth = limits(site.scenario.serve, site.version).depth
    lanes = _Lanes(timers[0], host, Clock(power, power.boost) if power.boost else None, depth, site.scenario.serve.gpus)
    found, idle = [], 0
    for step, following in zip(run.steps, run.steps[1:], strict=False):
        predicted = lanes.turn(step)
        if _fresh(following) and following.start > predicted:
            idle += 1
            lanes.drain()
        else:
            found.append(Interval(step.tokens, step.decodes, following.start - step.start, predicted - step.start))
            lanes.observe(following.start, predicted)
    return found, idle


def _fresh(step: Scheduled) -> bool:
    """Whether all that it computes has just arrived: its engine may have been idle before."""
    return not step.decodes and all(not before for _, before in step.chunks)


class _Lanes:
    """The host's lane and the GPU's, as far as they are known when a step is scheduled."""

    def __init__(self, timer: StepTimer, host: Host, clock: Clock | None, depth: int, gpus: int) -> None:
        self._timer, self._host, self._clock, self._depth, self._gpus = timer, host, clock, depth, gpus
        self._workers = Workers(host.worker)
        self._flying: list[tuple[float, int]] = []  # when batches in flight are done, and how many tokens they sample
        self._free = 0.0
        self._waited: int | None = None

    def turn(self, step: Scheduled) -> float:
        """When the scheduler is called after *step*."""
        core, now = self._host.core, step.start
        self._waited = None
        if self._gpus == 1:  # the loop's own thread launches, and has done so
            self._workers = Workers(self._host.worker)
        if not step.tokens:
            self._flying.append((now, 0))
            launched = now
        else:
            batch = batch_of(step)
            timeline = self._timer.timeline(batch)
            blocks = sum(-(-new // 16) for new, _ in step.chunks)
            ready = now + core.schedule + core.schedule_sequence * batch.sequences + core.schedule_block * blocks
            ready += core.send if self._gpus > 1 else 0.0
            (supply,) = self._workers.supply(batch, [timeline], ready)
            begin = max(self._free, supply.prepared)
            pace = self._clock.pace(timeline, begin) if self._clock else 1.0
            launched = ready if self._gpus > 1 else supply.launched
            self._free = max(begin + timeline.paced(pace), supply.launched)
            self._flying.append((self._free, batch.samples))
        if len(self._flying) < self._depth:
            return launched
        done, samples = self._flying.pop(0)
        self._waited = samples if done > launched else None
        return max(launched, done) + (core.update + core.update_sequence * samples if samples else 0.0)

    def drain(self) -> None:
        """Learn that there was nothing to do, and so that all batches were taken in."""
        self._flying.clear()

    def observe(self, moment: float, predicted: float) -> None:
        """Learn when the scheduler was called indeed: that is when the GPU was through with the batch waited for."""
        if self._waited is None:
            return
        late = moment - predicted
        self._free += late
        self._flying = [(done + late, samples) for done, samples in self._flying]


def batch_of(step: Scheduled) -> Batch:
    """The batch of a recorded step: of sequences that decode, only the sum of their contexts is known."""
    decodes, tokens = step.decodes, step.decode_tokens
    each, over = divmod(max(tokens - decodes, 0), decodes) if decodes else (0, 0)
    contexts = [(1, each + (place < over)) for place in range(decodes)]
    return Batch.of(*contexts, *step.chunks)
