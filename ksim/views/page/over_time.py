"""Quantities of a saved run over time, from its tables: a run that is over has left no log."""

from collections.abc import Iterator

import numpy as np

from ksim.results.series import Series
from ksim.results.steps import Bools, Floats, per_second, sums
from ksim.views.figures.run import Moments
from ksim.views.figures.scaling import ScaledMoments, by_arrival, prices
from ksim.views.page.reading import SavedRun

#: Points of a curve, and bins for requests, of which there are far fewer than tokens.
_POINTS, _REQUEST_BINS = 480, 96


def saved_moments(run: SavedRun, points: int = _POINTS, bins: int = _REQUEST_BINS) -> Moments:
    """Quantities over the whole run, as means of so many equal times, and of so many for arrivals and completions."""
    requests, end = run.requests, run.duration
    edges = np.linspace(0, end, points + 1)
    ended = np.asarray(requests["arrival_s"] + requests["e2e_s"])
    # Older runs have no `received_s`: their `queue_s` is from arrival.
    admitted = np.asarray(requests["received_s" if "received_s" in requests else "arrival_s"] + requests["queue_s"])
    over = requests["status"] != "unfinished"  # nothing tells when a failed request ended
    load = {"running": (np.where(np.isnan(ended) & over, np.nan, admitted), ended),
            "waiting": (np.where(np.isnan(admitted) & over, np.nan, requests["arrival_s"]), admitted)}
    rates = {"offered": requests["arrival_s"], "served": ended[run.completed]}
    kv, watts = {}, {}
    for name, which, gpus, blocks in _pools(run):
        kv[name] = _kept(run, which).means(edges) / max(blocks, 1.0)
        watts[name] = (_static(run, name, edges) + _dynamic(run, which).means(edges)) / max(gpus, 1)
    return Moments(end, {name: _between(*ends).means(edges) for name, ends in load.items()},
                   {name: per_second(times, bins, end) for name, times in rates.items()},
                   _tokens(run, edges), kv, watts)


def saved_scaling(run: SavedRun, points: int = _POINTS, bins: int = _REQUEST_BINS) -> ScaledMoments:
    """A fleet whose replicas come and go, over the whole run."""
    assert run.sizes is not None, "its replicas come and go"
    edges, everything = np.linspace(0, run.duration, points + 1), np.ones(len(run.steps["engine"]), np.bool_)
    ended = np.asarray(run.requests["status"] != "unfinished")
    kept = run.completed & ~run.missed if run.targets else None
    return ScaledMoments(run.duration, run.sizes, prices(run.summary),
                         _static(run, "", edges) + _dynamic(run, everything).means(edges),
                         *by_arrival(run.requests["arrival_s"], ended, kept, run.duration, bins))


def _static(run: SavedRun, pool: str, edges: Floats) -> Floats:
    """Static watts of *pool*, or of all GPUs, between *edges*; GPUs that are away draw none."""
    if run.sizes is not None and not pool:
        return np.asarray(sum(_static(run, name, edges) for name in run.sizes.gpus))
    joules = (run.summary["pools"][pool] if pool else run.summary)["static_energy_joules"] or 0.0
    if run.sizes is None:
        return np.full(len(edges) - 1, joules / run.duration)
    gpus = run.sizes.gpus[pool]
    return gpus.means(edges) * (joules / (float(gpus.integral(edges[-1:])[0]) or 1.0))


def _between(begin: Floats, end: Floats) -> Series:
    end = np.where(np.isnan(begin), np.nan, end)
    changes = np.concatenate([np.ones(len(begin)), -np.ones(len(end))])
    return Series.of_changes(np.concatenate([begin, end]), changes)


def _tokens(run: SavedRun, edges: Floats) -> Floats:
    """Output tokens per second between *edges*."""
    places = np.clip(np.searchsorted(edges, run.steps["time_s"], side="right") - 1, 0, len(edges) - 2)
    return np.asarray(sums(places, run.steps["samples"].astype(float), len(edges) - 1) / np.diff(edges))


def _pools(run: SavedRun) -> Iterator[tuple[str, Bools, int, float]]:
    """Each pool, or the whole run: its name, its steps, its GPUs, and its KV blocks."""
    steps, summary = run.steps, run.summary
    names = dict.fromkeys(built["pool"] for built in run.engines) if "pools" in summary else {}
    for name in names or [""]:
        own = [built for built in run.engines if built["pool"] == name or not names]
        part = summary["pools"][name] if name else summary
        numbers = [built["engine"] for built in own] or np.unique(steps["engine"])
        which = np.isin(steps["engine"], numbers)
        blocks = sum(built["kv_blocks"] for built in own) or _blocks(run)
        yield name, which, part["gpus"], blocks


def _blocks(run: SavedRun) -> float:
    """The KV blocks of all engines, as if they had the same number, from the peak in the summary."""
    steps, peak = run.steps, run.summary["kv_cache_usage_peak"]
    most = float(steps["kv_blocks"].max(initial=0))
    return len(np.unique(steps["engine"])) * most / peak if peak else 1.0


def _kept(run: SavedRun, which: Bools) -> Series:
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


def _dynamic(run: SavedRun, which: Bools) -> Series:
    """Dynamic watts of these steps."""
    begin, end = run.steps["start_s"][which], run.steps["end_s"][which]
    power = run.steps["joules"][which] / np.maximum(end - begin, 1e-12)
    return Series.of_changes(np.concatenate([begin, end]), np.concatenate([power, -power]))
