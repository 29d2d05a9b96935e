"""Recorded serving runs beside simulations of them: what was measured, what is predicted, and the errors.

Recorded batches through the step model alone: how long until the scheduler is called again?
"""

from collections.abc import Callable, Iterator
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
from attrs import asdict, define, evolve, field, fields, frozen

from benchmarks.research.serving import recordings
from benchmarks.research.serving.recordings import RecordedRun, Recording, Scheduled, ServerSpec
from ksim.cost.energy import Clock
from ksim.cost.step import Timer
from ksim.engine.loop_times import LoopTimes
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST
from ksim.foundation.errors import ConfigError, DataError, KsimError
from ksim.scenario.defaults import Deployment
from ksim.scenario.sizing import limits
from ksim.scheduling.engine_loop import EngineLoop, Turn
from ksim.scheduling.job import Job, Limits
from ksim.views.result import Result


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


def step_intervals(site: Deployment, run: RecordedRun) -> tuple[list[Interval], int]:
    """The intervals of *run*, each from what was recorded up to its beginning, and how many could not be told.

    A turn of the engine's loop makes a batch and launches it, and waits for the oldest once enough are in flight.  What
    cannot be told is how long an engine without work waits for the next request.  Raises ConfigError for pipelines.
    """
    timers, power, serve = site.timers(), site.gpu.power, site.scenario.serve
    if len(timers) > 1:
        raise ConfigError("pipeline_parallel_size", "steps of several stages cannot be played one by one")
    host = evolve(site.host, pace=recordings.pace_of(run))
    replayed = _Replayed(timers[0], LoopTimes(host, serve.gpus), limits(serve, site.version),
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


@frozen
class Figures:
    """Latencies in milliseconds, output tokens per second, and joules of a run; nan where they are not known."""

    ttft_p50_ms: float
    ttft_p90_ms: float
    tpot_p50_ms: float
    itl_p99_ms: float
    throughput: float
    joules: float


@frozen
class ComparedRun:
    """A recorded run: its figures as measured, and as predicted."""

    recording: str
    run: str
    requests: int
    measured: Figures
    predicted: Figures

    @property
    def errors(self) -> Figures:
        """Signed errors in per cent."""
        pairs = ((getattr(self.predicted, field.name), getattr(self.measured, field.name)) for field in fields(Figures))
        return Figures(*(100.0 * (ours / theirs - 1.0) if theirs else nan for ours, theirs in pairs))


@frozen
class ServingReport:
    """All runs that were compared; `left` names what was left out, runs or whole recordings, with the reasons."""

    runs: tuple[ComparedRun, ...]
    left: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]

    @property
    def metered(self) -> list[ComparedRun]:
        """The runs whose joules were measured."""
        return [run for run in self.runs if not isnan(run.measured.joules)]

    def median_ape(self, name: str) -> float:
        """The median over runs of a figure's absolute error in per cent; nan where no run has that figure."""
        errors = np.array([getattr(run.errors, name) for run in self.runs])
        known = errors[~np.isnan(errors)]
        return float(np.median(np.abs(known))) if len(known) else nan


@frozen
class StepReport:
    """The time from step to step of every run that has steps.

    Each of `runs` has its recording, its name, its intervals, and how many intervals cannot be predicted because the
    engine was idle and waited for a request.
    """

    runs: tuple[tuple[str, str, tuple[Interval, ...], int], ...]
    left: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]

    @property
    def errors(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Signed errors of all intervals in per cent."""
        return np.array([interval.error for _, _, intervals, _ in self.runs for interval in intervals])


def serving(folder: Path, server: ServerSpec, say: Callable[[str], None] = lambda _: None) -> ServingReport:
    """Simulate every run at *folder*; raises KsimError for files that cannot be used, or if nothing can be run."""
    notes = _Notes([], [])
    compared = []
    for recording, run, deployment in _runs(folder, server, notes):
        say(f"{recording.name} {run.name}")
        depth = limits(deployment.serve, deployment.version).depth
        compared.append(ComparedRun(recording.name, run.name, len(run.requests), measured(run, depth),
                                    predicted(recordings.simulate(deployment, run))))
    return ServingReport(tuple(compared), tuple(notes.left), tuple(notes.remarks))


def intervals(folder: Path, server: ServerSpec, say: Callable[[str], None] = lambda _: None) -> StepReport:
    """Price the recorded batches at *folder*, step by step; raises KsimError as `serving` does."""
    notes = _Notes([], [])
    runs = []
    for recording, run, deployment in _runs(folder, server, notes):
        if len(run.steps) < 2:
            notes.left.append((f"{recording.name} {run.name}", "has no recorded steps"))
            continue
        say(f"{recording.name} {run.name}")
        try:
            predicted_steps, idle = step_intervals(deployment, run)
        except KsimError as error:
            notes.left.append((f"{recording.name} {run.name}", str(error)))
            continue
        runs.append((recording.name, run.name, tuple(predicted_steps), idle))
    return StepReport(tuple(runs), tuple(notes.left), tuple(notes.remarks))


@frozen
class _Notes:
    left: list[tuple[str, str]]
    remarks: list[str]


def _runs(folder: Path, server: ServerSpec, notes: _Notes) -> Iterator[tuple[Recording, RecordedRun, Any]]:
    """Every run to compare, with its recording and a deployment like the recorded server."""
    any_run = False
    for path in recordings.find(folder):
        recording = recordings.read(path)
        try:
            deployment, others = recordings.deployment_of(recording, server)
        except KsimError as error:
            notes.left.append((recording.name, str(error)))
            continue
        if others:
            notes.remarks.append(f"{recording.name}: not simulated: {', '.join(others)}")
        runs, out = recordings.scored(recording.runs)
        notes.left.extend((f"{recording.name} {name}", "holds what an engine does only once") for name in out)
        for run in runs:
            any_run = True
            yield recording, run, deployment
    if not any_run:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in notes.left)
        raise DataError(str(folder), f"has no run that can be simulated: {reasons}")


def measured(run: RecordedRun, depth: int) -> Figures:
    """The recorded figures of a run; its engine has *depth* batches in flight."""
    ttft = [request.ttft for request in run.requests]
    tpot = [request.tpot for request in run.requests if request.tpot is not None]
    tokens = sum(request.output for request in run.requests)
    return Figures(_quantile(ttft, 0.5), _quantile(ttft, 0.9), _quantile(tpot, 0.5), _gaps(run, depth),
                   tokens / run.wall if run.wall else nan, run.joules or nan)


def _gaps(run: RecordedRun, depth: int) -> float:
    """The 99th percentile of the time between two tokens; a step counts once for each of its decodes.

    The tokens of a step are processed just before the scheduler is called for the *depth*-th time after it.
    """
    gaps = np.diff([step.start for step in run.steps])[depth - 1:]
    decodes = np.array([step.decodes for step in run.steps])[: len(gaps)]
    if not decodes.any():
        return nan
    order = np.argsort(gaps)
    reached = np.searchsorted(np.cumsum(decodes[order]), 0.99 * decodes.sum())
    return float(1e3 * gaps[order][reached])


def predicted(result: Result) -> Figures:
    """The figures of a simulated run."""
    history, requests = result.history, result.history.requests
    return Figures(
        _quantile(requests.ttft, 0.5), _quantile(requests.ttft, 0.9), _quantile(requests.tpot, 0.5),
        _quantile(requests.gaps, 0.99), float(requests.output.sum()) / history.duration,
        result.summary["energy_joules"])


def _quantile(seconds: Any, share: float) -> float:
    """The quantile at *share*, in milliseconds; nan without values."""
    known = np.asarray(seconds, dtype=float)
    known = known[~np.isnan(known)]
    return float(1e3 * np.quantile(known, share)) if len(known) else nan


def as_table(report: ServingReport) -> dict[str, Any]:
    """The report for a JSON file; what is not known is None."""
    def known(value: float) -> float | None:
        return None if value != value else value  # noqa: PLR0124 - a number that is none is not itself

    medians = {"ttft_median_ape": "ttft_p50_ms", "tpot_median_ape": "tpot_p50_ms",
               "throughput_median_ape": "throughput", "energy_median_ape": "joules",
               "ttft_p90_median_ape": "ttft_p90_ms", "itl_p99_median_ape": "itl_p99_ms"}
    rows = [{"recording": run.recording, "run": run.run, "requests": run.requests,
             **{kind: {name: known(value) for name, value in asdict(figures).items()} for kind, figures in
                (("measured", run.measured), ("predicted", run.predicted), ("error_percent", run.errors))}}
            for run in report.runs]
    return {**{key: known(report.median_ape(name)) for key, name in medians.items()}, "runs": rows,
            "left_out": [{"what": what, "reason": reason} for what, reason in report.left]}


def steps_as_table(report: StepReport) -> dict[str, Any]:
    """The report for a JSON file."""
    return {
        **_spread(report.errors),
        "runs": [{"recording": recording, "run": run, "idle": idle,
                  **_spread(np.array([interval.error for interval in intervals]))}
                 for recording, run, intervals, idle in report.runs],
        "left_out": [{"what": what, "reason": reason} for what, reason in report.left],
    }


def _spread(errors: Any) -> dict[str, Any]:
    if not len(errors):
        return {"steps": 0, "step_median_ape": None, "step_p90_ape": None, "step_median_error": None}
    return {"steps": len(errors), "step_median_ape": float(np.median(np.abs(errors))),
            "step_p90_ape": float(np.quantile(np.abs(errors), 0.9)), "step_median_error": float(np.median(errors))}
