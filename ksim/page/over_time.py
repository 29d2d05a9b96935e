"""Quantities of a saved run over time, from its tables."""

from collections.abc import Iterator, Mapping

import numpy as np

from ksim.page.reading import Run
from ksim.results.series import Series
from ksim.results.steps import Bools, Floats, sums


def running(run: Run) -> Series:
    """Requests between their first admission and their end."""
    requests, admitted = run.requests, _admitted(run)
    ended = np.asarray(requests["arrival_s"] + requests["e2e_s"])
    lost = np.isnan(ended) & (requests["status"] != "unfinished")  # nothing tells when a failed request ended
    return _between(np.where(lost, np.nan, admitted), ended)


def waiting(run: Run) -> Series:
    """Requests between their arrival and their first admission."""
    requests, admitted = run.requests, _admitted(run)
    lost = np.isnan(admitted) & (requests["status"] != "unfinished")
    return _between(np.where(lost, np.nan, requests["arrival_s"]), admitted)


def _admitted(run: Run) -> Floats:
    """When each request was first admitted.  Older runs have no `received_s`: their `queue_s` is from arrival."""
    requests = run.requests
    return np.asarray(requests["received_s" if "received_s" in requests else "arrival_s"] + requests["queue_s"])


def _between(begin: Floats, end: Floats) -> Series:
    end = np.where(np.isnan(begin), np.nan, end)
    changes = np.concatenate([np.ones(len(begin)), -np.ones(len(end))])
    return Series.of_changes(np.concatenate([begin, end]), changes)


def arrivals(run: Run, bins: int, edges: Floats) -> Floats:
    """Arrivals per second in so many bins."""
    return _rate(run.requests["arrival_s"], bins, edges)


def completions(run: Run, bins: int, edges: Floats) -> Floats:
    """Completions per second in so many bins."""
    return _rate((run.requests["arrival_s"] + run.requests["e2e_s"])[run.completed], bins, edges)


def _rate(times: Floats, bins: int, edges: Floats) -> Floats:
    counts = np.histogram(times, bins, (edges[0], edges[-1]))[0]
    return np.asarray(counts * bins / (edges[-1] - edges[0]))


def tokens(run: Run, edges: Floats) -> Floats:
    """Output tokens per second between *edges*."""
    places = np.clip(np.searchsorted(edges, run.steps["time_s"], side="right") - 1, 0, len(edges) - 2)
    return np.asarray(sums(places, run.steps["samples"].astype(float), len(edges) - 1) / np.diff(edges))


def pools(run: Run) -> Iterator[tuple[str, Bools, int, float, float]]:
    """Each pool, or the whole run: its name, its steps, its GPUs, its KV blocks, and its mean static watts."""
    steps, summary = run.steps, run.summary
    names = dict.fromkeys(built["pool"] for built in run.engines) if "pools" in summary else {}
    for name in names or [""]:
        own = [built for built in run.engines if built["pool"] == name or not names]
        part = summary["pools"][name] if name else summary
        numbers = [built["engine"] for built in own] or np.unique(steps["engine"])
        which = np.isin(steps["engine"], numbers)
        blocks = sum(built["kv_blocks"] for built in own) or _blocks(run)
        yield name, which, part["gpus"], blocks, (part["static_energy_joules"] or 0.0) / run.duration


def _blocks(run: Run) -> float:
    """The KV blocks of all engines, as if they had the same number, from the peak in the summary."""
    steps, peak = run.steps, run.summary["kv_cache_usage_peak"]
    most = float(steps["kv_blocks"].max(initial=0))
    return len(np.unique(steps["engine"])) * most / peak if peak else 1.0


def kv_usage(run: Run, edges: Floats) -> Mapping[str, Floats]:
    """Percent of the KV blocks of each pool in use; an engine without work uses none."""
    return {name: 100 * _kept(run, which).means(edges) / max(blocks, 1.0) for name, which, _, blocks, _ in pools(run)}


def _kept(run: Run, which: Bools) -> Series:
    """KV blocks in use on the engines of these steps."""
    steps = {name: column[which] for name, column in run.steps.items()}
    changes, times = [np.zeros(0)], [np.zeros(0)]
    for engine in np.unique(steps["engine"]).tolist():
        own = steps["engine"] == engine
        begin, end, blocks = (steps[name][own] for name in ("scheduled_s", "end_s", "kv_blocks"))
        work = np.append((steps["start_s"] - steps["host_gap_s"])[own][1:], np.inf)
        idle = work > end + 1e-9  # the engine had no work until then
        moments = np.concatenate([begin, end[idle]])
        order = np.argsort(moments, kind="stable")
        times.append(moments[order])
        changes.append(np.diff(np.concatenate([blocks, np.zeros(int(idle.sum()))])[order], prepend=0.0))
    return Series.of_changes(np.concatenate(times), np.concatenate(changes))


def watts(run: Run, edges: Floats) -> Mapping[str, Floats]:
    """Watts per GPU of each pool: its mean static power, and the dynamic power of its steps."""
    found = {}
    for name, which, gpus, _, static in pools(run):
        begin, end = run.steps["start_s"][which], run.steps["end_s"][which]
        dynamic = run.steps["joules"][which] / np.maximum(end - begin, 1e-12)
        series = Series.of_changes(np.concatenate([begin, end]), np.concatenate([dynamic, -dynamic]))
        found[name] = (static + series.means(edges)) / max(gpus, 1)
    return found
