"""Recorded runs beside simulations of the same requests: figures, and where by load and by length they part.

How the difference of a deployment changes from its lowest to its highest load.

The comparison of benchmarks for JSON: latencies in milliseconds, and None for what is not known.
"""

from collections.abc import Callable, Iterator, Sequence
from math import isnan, nan
from typing import Any

import numpy as np
from attrs import asdict, evolve, frozen

from ksim.results.steps import Floats
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play
from ksim.validation.benchmarks import causes
from ksim.validation.benchmarks.causes import NEAR, Cause, Pairs
from ksim.validation.benchmarks.recorded import (
    RATES,
    Recorded,
    ReplayedRun,
    ServedRequest,
    disagreements,
    figures_of,
    mismatches,
    replayed,
)
from ksim.views.result import Result

#: Parts into which the requests of a run are cut, by load and by length.
_PARTS = 3


@frozen
class RunPart:
    """Some requests of a run: mean latencies in seconds, measured and simulated."""

    what: str
    requests: int
    ttft: tuple[float, float]
    tpot: tuple[float, float]


@frozen
class Compared:
    """A recorded run and its simulation: `figures` that both have, as (measured, simulated), in seconds or per second.

    `by_load` and `by_prompt` are of runs with recorded requests.  `left` says what was not compared.
    """

    recorded: Recorded
    how: str
    figures: dict[str, tuple[float, float]]
    by_load: tuple[RunPart, ...] = ()
    by_prompt: tuple[RunPart, ...] = ()
    causes: tuple[Cause, ...] = ()
    remarks: tuple[str, ...] = ()

    def error(self, name: str) -> float:
        """Per cent by which the simulated figure is off the measured one; nan without it."""
        measured, simulated = self.figures.get(name, (nan, nan))
        return 100.0 * (simulated / measured - 1.0) if measured else nan


def compare(runs: Sequence[Recorded], scenario: Scenario,
            say: Callable[[str], None] = lambda _: None) -> list[Compared]:
    """Simulate each of *runs* with *scenario*, by growing load.

    Raises KsimError for a scenario that cannot be built.
    """
    compared = []
    for run in sorted(runs, key=_weight):
        say(run.name)
        compared.append(_compared(run, scenario))
    return compared


def _weight(run: Recorded) -> tuple[float, float]:
    return (run.load.concurrency or 0, run.load.rate or 0.0)


def _compared(run: Recorded, scenario: Scenario) -> Compared:
    load = replayed(run, scenario.seed)
    workload = evolve(scenario.workload, max_concurrency=load.concurrency, retries=None)
    result = play(Fleet.of(evolve(scenario, workload=workload)), load.requests)
    simulated = served_of(result)
    figures = _figures(run, simulated)
    shared = {name: (value, figures[name]) for name, value in run.figures.items() if name in figures}
    remarks = (*run.remarks, *_cut_short(run), *mismatches(run, scenario), *disagreements(run), *_losses(run, result))
    pairs = _pairs(run, load, simulated, result) if run.served else None
    if pairs is None:
        return Compared(run, load.how, shared, causes=tuple(causes.of_figures(shared)), remarks=remarks)
    return Compared(run, load.how, shared, _cut(pairs, pairs.in_flight, "in flight"),
                    _cut(pairs, pairs.prompt, "prompt tokens"), tuple(causes.of_requests(pairs)), remarks)


def _figures(run: Recorded, simulated: Sequence[ServedRequest]) -> dict[str, float]:
    """The simulated figures; of a run that was cut, those of the requests that end within its time.

    Without recorded requests, nobody knows which were under way at its end, so rates are left out.
    """
    done = [one for one in simulated if one.e2e is not None]
    if not run.incomplete:
        return figures_of(done)
    if not run.served or not run.duration:
        return {name: value for name, value in figures_of(done).items() if name not in RATES}
    ended = [one for one in done if (one.sent or 0.0) + (one.e2e or 0.0) <= run.duration]
    return figures_of(ended, run.duration, cut=True)


def _cut_short(run: Recorded) -> list[str]:
    """Return remarks on requests that were under way when the run ended."""
    if not run.incomplete:
        return []
    remark = f"the run was cut: {run.incomplete} of {run.count + run.incomplete} requests were incomplete when it ended"
    if not run.served or not run.duration:
        return [f"{remark}; they are not simulated, and throughputs are not compared"]
    return [f"{remark}; {len(run.unfinished)} of them are simulated as load, with outputs as long as the mean of the"
            f" others, and what ends within the run's {run.duration:,.4g} s is compared"]


def served_of(result: Result) -> list[ServedRequest]:
    """The requests of a simulated run, by their numbers; times are None for those that did not complete."""
    requests = result.history.requests
    order = np.argsort(requests.ids, kind="stable")
    gaps = _gaps(result)
    served = []
    for row in order.tolist():
        ttft, e2e, queue = (float(column[row]) if requests.completed[row] else None
                            for column in (requests.ttft, requests.e2e, requests.queue))
        served.append(ServedRequest(requests.requests[row].prompt, int(requests.output[row]), ttft, e2e,
                                    sent=float(requests.arrival[row]), queue=queue, gaps=tuple(gaps[row])))
    return served


def _gaps(result: Result) -> list[list[float]]:
    """The times between two parts of the stream of each request, row by row."""
    requests = result.history.requests
    return [part.tolist() for part in np.split(requests.gaps, np.cumsum(requests.gap_counts)[:-1])]


def _losses(run: Recorded, result: Result) -> list[str]:
    requests = result.history.requests
    lost = int((~requests.completed).sum())
    reasons = sorted(set(requests.reasons.values()))
    return ([f"{run.failed} requests failed in the recording, and are not simulated"] if run.failed else []) + (
        [f"{lost} requests were not served in the simulation: {'; '.join(reasons) or 'the run ended'}"] if lost else [])


def _pairs(run: Recorded, load: ReplayedRun, simulated: Sequence[ServedRequest], result: Result) -> Pairs | None:
    """Requests that were answered both in the recording and in the simulation, in the order of sending."""
    sent = [*run.served, *run.unfinished]
    measured = [sent[index] for index in load.order]
    known = [index for index, (theirs, ours) in enumerate(zip(measured, simulated, strict=True))
             if theirs.ttft is not None and theirs.e2e is not None and ours.e2e is not None]
    if not known:
        return None
    theirs, ours = [measured[index] for index in known], [simulated[index] for index in known]
    timed = all(one.sent is not None for one in theirs)
    return Pairs(tuple(theirs), tuple(ours), causes.in_flight(theirs if timed else ours))


def _cut(pairs: Pairs, by: Floats, word: str) -> tuple[RunPart, ...]:
    """The requests in up to `_PARTS` parts, by a number of each; one part says nothing, so it is left out."""
    limits = np.unique(np.quantile(by, np.linspace(0, 1, _PARTS + 1)))
    if len(limits) < 2:
        return ()
    bins = np.clip(np.searchsorted(limits, by, side="right") - 1, 0, len(limits) - 2)
    parts = []
    for number in range(len(limits) - 1):
        rows = np.flatnonzero(bins == number)
        if len(rows):
            parts.append(_part(pairs, rows, f"{by[rows].min():g} to {by[rows].max():g} {word}"))
    return tuple(parts)


def _part(pairs: Pairs, rows: Any, what: str) -> RunPart:
    def mean(values: Floats) -> float:
        known = values[rows][~np.isnan(values[rows])]
        return float(known.mean()) if len(known) else nan

    return RunPart(what, len(rows), (mean(pairs.ttft), mean(pairs.own_ttft)), (mean(pairs.tpot), mean(pairs.own_tpot)))


#: What it means where a latency fits at low load alone, or is off by as much at any load.
_MEANING = {"ttft": ("the queue or the capacity differs",
                     "what a request takes alone differs: client, network or prefill"),
            "tpot": ("what a batch adds to a step differs: attention, KV reads or scheduling",
                     "every step differs: launches, the host, or weights that are read more slowly")}
#: A difference grows with the load if it is so many times as large at the highest one.
_GROWS = 2.0


def trends(compared: Sequence[Compared]) -> Iterator[str]:
    """A sentence on each latency that differs in *compared*, runs of growing load; none of a single run."""
    if len(compared) < 2 or compared[0].recorded.load == compared[-1].recorded.load:
        return
    for metric in ("ttft", "tpot"):
        runs = [one for one in compared if f"{metric}_mean" in one.figures]
        if len(runs) > 1:
            yield from _trend(metric, runs[0], runs[-1])


def _trend(metric: str, low: Compared, high: Compared) -> Iterator[str]:
    (few, own_few), (many, own_many) = (one.figures[f"{metric}_mean"] for one in (low, high))
    far = [abs(measured / own - 1) > NEAR for measured, own in ((few, own_few), (many, own_many))]
    if not any(far):
        return
    late, later = few - own_few, many - own_many
    grows, alike = _MEANING[metric]
    word = (f"so it grows with the load: {grows}" if abs(later) > _GROWS * abs(late) else
            f"about as much at any load: {alike}" if abs(late) <= _GROWS * abs(later) and late * later > 0 else
            "so it shrinks with the load: what happens when there is little to do differs, such as clocks")
    yield (f"{metric.upper()}: {1e3 * late:+,.4g} ms at {low.recorded.load}, {1e3 * later:+,.4g} ms at"
           f" {high.recorded.load}, {word}")


#: The figures whose errors sum up a comparison.
HEADLINES = {"ttft": "ttft_p50", "tpot": "tpot_p50", "throughput": "output_throughput"}


def as_json(compared: Sequence[Compared]) -> dict[str, Any]:
    """The runs, and the medians over them of absolute errors in per cent."""
    return {**{f"{name}_median_ape": _known(median_ape(compared, figure)) for name, figure in HEADLINES.items()},
            "trends": list(trends(compared)), "runs": [_run(one) for one in compared]}


def median_ape(compared: Sequence[Compared], figure: str) -> float:
    """The median over runs of the absolute error of *figure*; the mean latency stands in where a median is missing."""
    others = (figure, figure.replace("_p50", "_mean"))
    errors = [abs(one.error(next((name for name in others if name in one.figures), figure))) for one in compared]
    known = [error for error in errors if not isnan(error)]
    return float(np.median(known)) if known else float("nan")


def _run(one: Compared) -> dict[str, Any]:
    run = one.recorded
    return {
        "result": str(run.path), "run": run.name, "client": run.tool, "requests": run.count, "failed": run.failed,
        "incomplete": run.incomplete,
        "load": {key: value for key, value in asdict(run.load).items() if key != "burstiness" or run.load.rate},
        "facts": dict(run.facts), "simulated": one.how,
        "measured": {_key(name): _scaled(name, pair[0]) for name, pair in one.figures.items()},
        "predicted": {_key(name): _scaled(name, pair[1]) for name, pair in one.figures.items()},
        "error_percent": {_key(name): _known(one.error(name)) for name in one.figures},
        "by_load": [_split(part) for part in one.by_load], "by_prompt": [_split(part) for part in one.by_prompt],
        "causes": [{"cause": cause.name, "metric": cause.metric, "ms": 1e3 * cause.seconds, "evidence": cause.evidence}
                   for cause in one.causes],
        "remarks": list(one.remarks)}


def _key(name: str) -> str:
    return name if name in RATES else f"{name}_ms"


def _scaled(name: str, value: float) -> float | None:
    return _known(value if name in RATES else 1e3 * value)


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def _split(part: RunPart) -> dict[str, Any]:
    return {"what": part.what, "requests": part.requests,
            **{f"{side}_{name}_ms": _known(1e3 * value) for name, pair in (("ttft", part.ttft), ("tpot", part.tpot))
               for side, value in zip(("measured", "predicted"), pair, strict=True)}}
