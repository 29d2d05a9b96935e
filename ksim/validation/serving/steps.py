"""Recorded batches through the step model alone: how long until the scheduler is called again?"""

from attrs import define, field, frozen

from ksim.cost.clock import Clock
from ksim.cost.passes import Timer
from ksim.engine.loop_times import LoopTimes
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST
from ksim.foundation.errors import ConfigError
from ksim.scheduling.engine_loop import EngineLoop, Turn
from ksim.scheduling.job import Job
from ksim.scheduling.limits import Limits
from ksim.simulation.deployment import Deployment
from ksim.simulation.sizing import limits
from ksim.validation.serving.recordings import RecordedRun, Scheduled


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


def intervals(site: Deployment, run: RecordedRun) -> tuple[list[Interval], int]:
    """The intervals of *run*, each from what was recorded up to its beginning, and how many could not be told.

    A turn of the engine's loop makes a batch and launches it, and waits for the oldest once enough are in flight.  What
    cannot be told is how long an engine without work waits for the next request.  Raises ConfigError for pipelines.
    """
    timers, power, serve = site.timers(), site.gpu.power, site.scenario.serve
    if len(timers) > 1:
        raise ConfigError("pipeline_parallel_size", "steps of several stages cannot be played one by one")
    replayed = _Replayed(timers[0], LoopTimes(site.host, serve.gpus), limits(serve, site.version),
                         Clock(power, power.clocks) if power.clocks else None, serve.block_size or 1)
    predictions, idle = list[Interval](), 0
    for step, following in zip(run.steps, run.steps[1:], strict=False):
        predicted = replayed.turn(step)
        if _fresh(following) and following.start > predicted:
            idle += 1
            replayed.drain()
        else:
            predictions.append(Interval(step.tokens, step.decodes, following.start - step.start,
                                        predicted - step.start))
            replayed.observe(following.start, predicted)
    return predictions, idle


def _fresh(step: Scheduled) -> bool:
    """Whether all that it computes has just arrived: its engine may have been idle before."""
    return not step.decodes and all(not before for _, before in step.chunks)


@define(eq=False)
class _Replayed:
    """An engine whose scheduler makes the batches that were recorded, when they were recorded.

    It is the port of its own loop, and its `times` are set to what was recorded, turn by turn.
    """

    timer: Timer
    times: LoopTimes
    limits: Limits
    clock: Clock | None
    block_tokens: int
    _loop: EngineLoop = field(init=False)
    _step: Scheduled = field(init=False)
    _waited: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._loop = EngineLoop(self)

    def turn(self, step: Scheduled) -> float:
        """When the scheduler is called after *step*."""
        self._step, self._waited, self.times.now = step, False, step.start
        if self.times.workers == 1:  # the loop's own thread launches, and has done so
            self.times.worker = 0.0
        self._loop.run_turn_at_once(self)
        return self.times.now

    def drain(self) -> None:
        """Learn that there was nothing to do, and so that all batches were taken in."""
        while self._loop.in_flight:
            self.wait(self._loop.in_flight.popleft())

    def observe(self, moment: float, predicted: float) -> None:
        """Learn when the scheduler was called indeed: that is when the GPU was through with the batch waited for."""
        if self._waited:
            self.times.shift(moment - predicted)

    # As a scheduler.

    def schedule(self, now: float) -> Scheduled | None:
        return self._step if self._step.tokens else None

    def update(self, schedule: Scheduled | None, index: int) -> list[Job]:
        return []

    # As a port.

    @property
    def now(self) -> float:
        return self.times.now

    def launch(self, turn: Turn) -> tuple[()]:
        if not turn.empty:
            batch = batch_of(self._step)
            load = self.timer.summarize(batch)
            blocks = sum(-(-new // self.block_tokens) for new, _ in self._step.chunks)
            _, launched, start = self.times.prepare(batch.sequences, blocks, load.launch_seconds)
            pace = self.clock.pace(load, start) if self.clock else AT_BOOST
            self.times.compute(launched, start, load.seconds_at(pace), batch.samples)
        return ()

    def wait(self, turn: Turn) -> tuple[()]:
        if not turn.empty:
            self._waited = self.times.oldest_end > self.times.now
            self.times.finish()
        return ()

    def deliver(self, turn: Turn, finished: list[Job]) -> None:
        """Nobody waits for the tokens."""

    def sleep(self, turn: Turn) -> tuple[()]:
        return ()


def batch_of(step: Scheduled) -> Batch:
    """The batch of a recorded step: of sequences that decode, only the sum of their contexts is known."""
    decodes, tokens = step.decodes, step.decode_tokens
    each, over = divmod(max(tokens - decodes, 0), decodes) if decodes else (0, 0)
    contexts = [(1, each + (place < over)) for place in range(decodes)]
    return Batch.of(*contexts, *step.chunks)
