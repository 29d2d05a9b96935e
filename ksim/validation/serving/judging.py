"""What was measured beside what is predicted, run by run, and how far off that is in the median."""

from collections.abc import Callable, Iterator
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
from attrs import asdict, fields, frozen

from ksim.foundation.errors import DataError, KsimError
from ksim.report.result import Result
from ksim.simulation.sizing import limits
from ksim.validation.serving import recordings, replay, steps
from ksim.validation.serving.recordings import Recording, Run
from ksim.validation.serving.replay import Setting
from ksim.validation.serving.steps import Interval


@frozen
class Figures:
    """What a user sees of a run: milliseconds, output tokens per second, joules; nan where it is not known."""

    ttft_p50_ms: float
    ttft_p90_ms: float
    tpot_p50_ms: float
    itl_p99_ms: float
    throughput: float
    joules: float


@frozen
class Judged:
    """One run."""

    recording: str
    run: str
    requests: int
    measured: Figures
    predicted: Figures

    @property
    def errors(self) -> Figures:
        """Per cent, signed."""
        pairs = ((getattr(self.predicted, field.name), getattr(self.measured, field.name)) for field in fields(Figures))
        return Figures(*(100.0 * (ours / theirs - 1.0) if theirs else nan for ours, theirs in pairs))


@frozen
class Verdict:
    """All runs that were judged; `left` are runs left out and recordings that could not be run, with the reason."""

    judged: tuple[Judged, ...]
    left: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]

    @property
    def metered(self) -> list[Judged]:
        """Those of the runs whose joules were measured."""
        return [run for run in self.judged if not isnan(run.measured.joules)]

    def median_ape(self, name: str) -> float:
        """The median over runs of the absolute error of a figure, per cent; nan where no run has it."""
        errors = np.array([getattr(run.errors, name) for run in self.judged])
        known = errors[~np.isnan(errors)]
        return float(np.median(np.abs(known))) if len(known) else nan


@frozen
class StepVerdict:
    """The intervals of every run that has steps; `idle` counts those that waited for a request and cannot be told."""

    runs: tuple[tuple[str, str, tuple[Interval, ...], int], ...]
    left: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]

    @property
    def errors(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Of all intervals, per cent, signed."""
        return np.array([interval.error for _, _, found, _ in self.runs for interval in found])


def serving(folder: Path, setting: Setting, say: Callable[[str], None] = lambda _: None) -> Verdict:
    """Replay every run at *folder*; raises KsimError for files that cannot be used, or if nothing could be run."""
    notes = _Notes([], [])
    judged = []
    for recording, run, site in _runs(folder, setting, notes):
        say(f"{recording.name} {run.name}")
        depth = limits(site.scenario.serve, site.version).depth
        judged.append(Judged(recording.name, run.name, len(run.requests), measured(run, depth),
                             predicted(replay.simulate(site, run))))
    return Verdict(tuple(judged), tuple(notes.left), tuple(notes.remarks))


def intervals(folder: Path, setting: Setting, say: Callable[[str], None] = lambda _: None) -> StepVerdict:
    """Play the recorded batches at *folder*; raises KsimError as `serving` does."""
    notes = _Notes([], [])
    runs = []
    for recording, run, site in _runs(folder, setting, notes):
        if len(run.steps) < 2:
            notes.left.append((f"{recording.name} {run.name}", "has no recorded steps"))
            continue
        say(f"{recording.name} {run.name}")
        try:
            found, idle = steps.intervals(site, run)
        except KsimError as error:
            notes.left.append((f"{recording.name} {run.name}", str(error)))
            continue
        runs.append((recording.name, run.name, tuple(found), idle))
    return StepVerdict(tuple(runs), tuple(notes.left), tuple(notes.remarks))


@frozen
class _Notes:
    left: list[tuple[str, str]]
    remarks: list[str]


def _runs(folder: Path, setting: Setting, notes: _Notes) -> Iterator[tuple[Recording, Run, Any]]:
    """Every run to be judged, with the engine that it is for."""
    some = False
    for path in recordings.find(folder):
        recording = recordings.read(path)
        try:
            site, others = replay.site(recording, setting)
        except KsimError as error:
            notes.left.append((recording.name, str(error)))
            continue
        if others:
            notes.remarks.append(f"{recording.name}: not simulated: {', '.join(others)}")
        runs, out = recordings.scored(recording.runs)
        notes.left.extend((f"{recording.name} {name}", "holds what an engine does only once") for name in out)
        for run in runs:
            some = True
            yield recording, run, site
    if not some:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in notes.left)
        raise DataError(str(folder), f"has no run that could be judged: {reasons}")


def measured(run: Run, depth: int) -> Figures:
    """What was recorded of an engine that has *depth* batches in flight."""
    ttft = [request.ttft for request in run.requests]
    tpot = [request.tpot for request in run.requests if request.tpot is not None]
    tokens = sum(request.output for request in run.requests)
    return Figures(_quantile(ttft, 0.5), _quantile(ttft, 0.9), _quantile(tpot, 0.5), _gaps(run, depth),
                   tokens / run.wall if run.wall else nan, run.joules or nan)


def _gaps(run: Run, depth: int) -> float:
    """The 99th percentile of the time between two tokens, each as often as a step has decodes.

    A step's tokens are taken in just before the scheduler is called *depth* calls later.
    """
    gaps = np.diff([step.start for step in run.steps])[depth - 1:]
    decodes = np.array([step.decodes for step in run.steps])[: len(gaps)]
    if not decodes.any():
        return nan
    order = np.argsort(gaps)
    reached = np.searchsorted(np.cumsum(decodes[order]), 0.99 * decodes.sum())
    return float(1e3 * gaps[order][reached])


def predicted(result: Result) -> Figures:
    """What our own run says."""
    history, requests = result.history, result.history.requests
    return Figures(
        _quantile(requests.ttft, 0.5), _quantile(requests.ttft, 0.9), _quantile(requests.tpot, 0.5),
        _quantile(requests.gaps, 0.99), float(requests.output.sum()) / history.duration,
        result.summary["energy_joules"])


def _quantile(seconds: Any, share: float) -> float:
    """Milliseconds; nan where there is nothing to judge."""
    known = np.asarray(seconds, dtype=float)
    known = known[~np.isnan(known)]
    return float(1e3 * np.quantile(known, share)) if len(known) else nan


def as_table(verdict: Verdict) -> dict[str, Any]:
    """The verdict for a JSON file; what is not known is None."""
    def known(value: float) -> float | None:
        return None if value != value else value  # noqa: PLR0124 - a number that is none is not itself

    medians = {"ttft_median_ape": "ttft_p50_ms", "tpot_median_ape": "tpot_p50_ms",
               "throughput_median_ape": "throughput", "energy_median_ape": "joules",
               "ttft_p90_median_ape": "ttft_p90_ms", "itl_p99_median_ape": "itl_p99_ms"}
    rows = [{"recording": run.recording, "run": run.run, "requests": run.requests,
             **{kind: {name: known(value) for name, value in asdict(figures).items()} for kind, figures in
                (("measured", run.measured), ("predicted", run.predicted), ("error_percent", run.errors))}}
            for run in verdict.judged]
    return {**{key: known(verdict.median_ape(name)) for key, name in medians.items()}, "runs": rows,
            "left_out": [{"what": what, "reason": reason} for what, reason in verdict.left]}


def steps_as_table(verdict: StepVerdict) -> dict[str, Any]:
    """The verdict for a JSON file."""
    return {
        **_spread(verdict.errors),
        "runs": [{"recording": recording, "run": run, "idle": idle,
                  **_spread(np.array([interval.error for interval in found]))}
                 for recording, run, found, idle in verdict.runs],
        "left_out": [{"what": what, "reason": reason} for what, reason in verdict.left],
    }


def _spread(errors: Any) -> dict[str, Any]:
    if not len(errors):
        return {"steps": 0, "step_median_ape": None, "step_p90_ape": None, "step_median_error": None}
    return {"steps": len(errors), "step_median_ape": float(np.median(np.abs(errors))),
            "step_p90_ape": float(np.quantile(np.abs(errors), 0.9)), "step_median_error": float(np.median(errors))}
