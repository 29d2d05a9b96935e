"""Recorded batches through the step model alone: how long until the scheduler is called again?"""

from attrs import define, field, frozen

from ksim.cost.clock import Clock
from ksim.cost.step import StepTimer
from ksim.engine.workers import Workers
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST
from ksim.foundation.errors import ConfigError
from ksim.simulation.assembly import Site
from ksim.simulation.sizing import limits
from ksim.specs.host import Host
from ksim.validation.serving.recordings import Run, Scheduled


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
    timers, power, serve = site.timers(), site.gpu.power, site.scenario.serve
    if len(timers) > 1:
        raise ConfigError("pipeline_parallel_size", "steps of several stages cannot be played one by one")
    lanes = _Lanes(timers[0], site.host, Clock(power, power.clocks) if power.clocks else None,
                   limits(serve, site.version).depth, serve.gpus, serve.block_size or 1)
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


@define(eq=False)
class _Lanes:
    """The host's lane and the GPU's, as far as they are known when a step is scheduled.

    The engine is on so many `gpus` and has `depth` batches in flight.
    """

    timer: StepTimer
    host: Host
    clock: Clock | None
    depth: int
    gpus: int
    block_tokens: int
    _workers: Workers = field(init=False)
    _in_flight: list[tuple[float, int]] = field(factory=list, init=False)  # when each is done, and what it samples
    _free: float = field(default=0.0, init=False)
    _waited: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._workers = Workers(self.host.worker)

    def turn(self, step: Scheduled) -> float:
        """When the scheduler is called after *step*."""
        launched = self._launch(step) if step.tokens else self._skip(step)
        self._waited = False
        if len(self._in_flight) < self.depth:
            return launched
        done, samples = self._in_flight.pop(0)
        self._waited = done > launched
        return max(launched, done) + (self.host.core.taking(samples) if samples else 0.0)

    def _skip(self, step: Scheduled) -> float:
        self._in_flight.append((step.start, 0))
        return step.start

    def _launch(self, step: Scheduled) -> float:
        """Put *step* on the GPU; return when the loop goes on."""
        if self.gpus == 1:  # the loop's own thread launches, and has done so
            self._workers = Workers(self.host.worker)
        batch = batch_of(step)
        timeline = self.timer.step_cost(batch)
        blocks = sum(-(-new // self.block_tokens) for new, _ in step.chunks)
        ready = step.start + self.host.core.making(batch.sequences, blocks, self.gpus)
        (launch,) = self._workers.launch(batch, [timeline], ready)
        begin = max(self._free, launch.prepared)
        pace = self.clock.pace(timeline, begin) if self.clock else AT_BOOST
        self._free = max(begin + timeline.seconds_at(pace), launch.launched)
        self._in_flight.append((self._free, batch.samples))
        return ready if self.gpus > 1 else launch.launched

    def drain(self) -> None:
        """Learn that there was nothing to do, and so that all batches were taken in."""
        self._in_flight.clear()

    def observe(self, moment: float, predicted: float) -> None:
        """Learn when the scheduler was called indeed: that is when the GPU was through with the batch waited for."""
        if not self._waited:
            return
        late = moment - predicted
        self._free += late
        self._in_flight = [(done + late, samples) for done, samples in self._in_flight]


def batch_of(step: Scheduled) -> Batch:
    """The batch of a recorded step: of sequences that decode, only the sum of their contexts is known."""
    decodes, tokens = step.decodes, step.decode_tokens
    each, over = divmod(max(tokens - decodes, 0), decodes) if decodes else (0, 0)
    contexts = [(1, each + (place < over)) for place in range(decodes)]
    return Batch.of(*contexts, *step.chunks)
