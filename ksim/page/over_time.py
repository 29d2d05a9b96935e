"""Quantities of a saved run over time, from its tables.

Phases of requests' time in the groups in which they are shown, each with its colour.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ksim.page.document import BLUE, GOLD, GREEN, GREY, ORANGE, PINK, PURPLE, RED, TEAL
from ksim.page.reading import Run
from ksim.results.attribution import groups, members
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


COLOURS = {
    "client's back-off": "#4a3f55", "held at the gateway": "#a38cb5",
    "client and intake": GREY, "queue": ORANGE, "queue: KV load": "#2f7f86", "queue: rest": ORANGE,
    "own prefill": BLUE, "others' prefill": "#8db4e2",
    "others' decodes": "#9ecfb8", "hop": "#6b7480", "wait for room": RED, "KV transfer": TEAL, "KV contention": PINK,
    "next step": "#c9a8a1", "decode": GREEN, "preemption": "#8c2f39", "host": GOLD, "adapter loads": "#7a5195",
    "communication": PURPLE, "delivery": "#b9c0c8",
}


def by_group(seconds: Floats, names: Sequence[str]) -> Floats:
    """The seconds of each group of phases: the last dimension goes from *names* to groups."""
    return np.stack([seconds[..., [names.index(name) for name in members(group, names)]].sum(axis=-1)
                     for group in groups(names)], axis=-1)


def colour(group: str) -> str:
    return COLOURS.get(group, GREY)


def largest(seconds: Floats, titles: Sequence[str], most: int = 3) -> list[tuple[str, float]]:
    """The groups with the most seconds that are more than a twentieth of all, and their shares."""
    whole = float(seconds.sum()) or 1.0
    order = np.argsort(-seconds, kind="stable")[:most].tolist()
    return [(titles[place], float(seconds[place]) / whole) for place in order if seconds[place] > 0.05 * whole]
