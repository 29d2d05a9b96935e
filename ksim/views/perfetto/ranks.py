"""Ranks that differ on tracks of a trace: where each computes, waits or is in a collective, and for whom it waits.

Only steps with a timeline have slices: the first ones, and those in which ranks waited longest.  All rearrangements of
experts have one, on tracks below those of the ranks.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from attrs import frozen

from ksim.flow.events import ExpertsMoved, RanksMet, RankTimeline
from ksim.results.history import History
from ksim.results.ranks import Ranks
from ksim.results.steps import Floats, Ints
from ksim.views.perfetto.requests import process
from ksim.views.perfetto.tracks import counter, lines, name_of, picked, thousandths, whole

#: Slices of ranks beyond this are left out unless a window asks for them, and so are arrows; the longest waits stay.
BUDGET, ARROWS = 50_000, 5_000
#: Of the ranks that wait in a meeting, so many have an arrow, if they wait so many nanoseconds.
_EACH, _LEAST = 3, 1_000
#: Nanoseconds from the end of a slice at which an arrow begins or ends, so that it is within.
_WITHIN = 100


@frozen(eq=False)
class MetTimes:
    """A step of ranks in nanoseconds, (ranks, meetings): when they were `ready` to compute, `came`, could begin as the
    `latest` came, and `left`; -1 for meetings that a rank has not."""

    gpus: Ints
    names: Sequence[str]
    ready: Ints
    came: Ints
    latest: Ints
    left: Ints

    @classmethod
    def of(cls, gpus: Ints, timeline: RankTimeline) -> "MetTimes":
        """Those of one *timeline*."""
        came = _nanoseconds(timeline.came)
        latest = np.maximum(_nanoseconds(timeline.latest), came)
        left = np.maximum(_nanoseconds(timeline.left), latest)
        ready = np.concatenate([_nanoseconds(timeline.started)[:, None], left[:, :-1]], axis=1)
        names = [name or "end of the step" for name in timeline.names]
        return cls(np.asarray(gpus, np.int64), names, np.where(came < 0, came, np.minimum(ready, came)), came, latest,
                   left)


def _nanoseconds(times: Floats) -> Ints:
    known = np.asarray(times, np.float64)
    return np.where(np.isnan(known), -1, np.rint(1e9 * np.nan_to_num(known))).astype(np.int64)


def rank_tracks(history: History, window: tuple[float, float] | None, stride: int) -> Iterator[bytes | memoryview]:
    """A process with a track for each GPU that may differ: slices, arrows, and what share of ranks' time is waiting.

    Slices are those of steps with a timeline that touch *window*, in seconds, or else of the first up to `BUDGET`.
    """
    of, steps = process(history) + 3, _shown(history, window)
    yield (",\n" + name_of("process", of, 0, "ranks: who waits for whom")).encode()
    found = Ranks.of(history.log, history.duration)
    for gpu, engine in sorted(zip(found.gpus.tolist(), found.engines.tolist(), strict=True)):
        yield (",\n" + name_of("thread", of, 1 + gpu, f"GPU {gpu}, engine {engine}")).encode()
    for stage in found.stages:
        waiting = stage.waited.mean(axis=1) / np.maximum(stage.end - stage.start, 1e-300)
        name = f"waiting, %: engine {stage.engine}{f', stage {stage.stage}' if stage.stage else ''}"
        yield from counter(name, of, stage.start[::stride], np.rint(100 * waiting).astype(np.int64)[::stride])
    if history.log.has(ExpertsMoved):
        yield from _rearrangements(of, 2 + int(found.gpus.max(initial=0)), history)
    if steps:
        yield _slices(of, steps)
        yield _arrows(of, steps)


def _rearrangements(of: int, first: int, history: History) -> Iterator[bytes | memoryview]:
    """A track for each stage whose experts EPLB moves, from thread *first* on, and a slice for each time it does."""
    moved = history.log.columns(ExpertsMoved)
    stages, track = np.unique(np.stack([moved["engine"], moved["stage"]], axis=1), axis=0, return_inverse=True)
    for thread, (engine, stage) in enumerate(stages.tolist(), first):
        name = f"EPLB, engine {engine}{f', stage {stage}' if stage else ''}"
        yield (",\n" + name_of("thread", of, thread, name)).encode()
    begin, end = _nanoseconds(moved["start"]), _nanoseconds(moved["time"])
    permille = [np.rint(1000 * moved[name]).astype(np.int64) for name in ("before", "after")]
    yield lines(f',\n{{"name":"rearrange experts","cat":"eplb","ph":"X","pid":{of},"tid":',
                whole(first + track.reshape(-1)), ',"ts":', thousandths(begin), ',"dur":', thousandths(end - begin),
                ',"args":{"experts":', whole(moved["experts"]), ',"bytes":',
                whole(np.rint(moved["bytes"]).astype(np.int64)), ',"fullest_before":', thousandths(permille[0]),
                ',"fullest_after":', thousandths(permille[1]), "}}")


def _shown(history: History, window: tuple[float, float] | None) -> list[MetTimes]:
    """The steps with slices, in the order of time."""
    columns = history.log.columns(RanksMet)
    rows = np.array([row for row, timeline in enumerate(columns["timeline"].tolist()) if timeline is not None], np.intp)
    if window is not None:
        rows = rows[(columns["time"][rows] > window[0]) & (columns["start"][rows] < window[1])]
    elif len(rows):
        sizes = [3 * columns["timeline"][row].came.size for row in rows]
        rows = rows[:max(1, int(np.searchsorted(np.cumsum(sizes), BUDGET, side="right")))]
    return [MetTimes.of(columns["gpus"][row], columns["timeline"][row]) for row in rows]


def _slices(of: int, steps: Sequence[MetTimes]) -> memoryview:
    """What each rank does: one slice after the other on each track."""
    texts = ["computing", "waiting", *dict.fromkeys(name for step in steps for name in step.names)]
    parts = []
    for step in steps:
        kinds = np.array([texts.index(name, 2) for name in step.names])
        for begin, end, kind in ((step.ready, step.came, 0), (step.came, step.latest, 1),
                                 (step.latest, step.left, kinds)):
            rank, place = np.nonzero(end > begin)
            parts.append((step.gpus[rank], begin[rank, place], end[rank, place],
                          np.broadcast_to(kind, begin.shape)[rank, place]))
    gpu, begin, end, kind = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((begin, gpu))
    return lines(',\n{"name":"', picked(texts, kind[order]), f'","cat":"ranks","ph":"X","pid":{of},"tid":',
                 whole(1 + gpu[order]), ',"ts":', thousandths(begin[order]), ',"dur":',
                 thousandths((end - begin)[order]), "}")


def _arrows(of: int, steps: Sequence[MetTimes]) -> memoryview:
    """From the last rank of a meeting, as it comes, to those that wait for it: of the longest waits, in pairs."""
    found = np.concatenate([np.zeros((0, 5), np.int64), *map(_pairs, steps)])
    found = found[np.argsort(-found[:, 4], kind="stable")[:ARROWS]]
    found = found[np.argsort(found[:, 1], kind="stable")]
    both = found[:, :4].reshape(-1, 2)
    number, ends = np.repeat(np.arange(len(found)), 2), np.tile([0, 1], len(found))
    return lines(',\n{"name":"last to come","cat":"ranks","ph":"', picked(("s", 'f","bp":"e'), ends), '","id":',
                 whole(number), f',"pid":{of},"tid":', whole(1 + both[:, 0]), ',"ts":', thousandths(both[:, 1]), "}")


def _pairs(step: MetTimes) -> Ints:
    """The arrows of a step: the GPU and the time where each begins, those where it ends, and how long that one waited.
    """
    rank, place = np.nonzero(step.came >= 0)
    came, latest = step.came[rank, place], step.latest[rank, place]
    _, meeting = np.unique(np.stack([place, latest], axis=1), axis=0, return_inverse=True)
    last = np.zeros(int(meeting.max(initial=0)) + 1, np.intp)
    order = np.argsort(came, kind="stable")
    last[meeting[order]] = order
    entries = np.lexsort((came, meeting))  # of each meeting, the longest wait first
    same = (np.diff(meeting[entries], prepend=-1) == 0) & (np.diff(came[entries], prepend=-1) == 0)
    entries = entries[~same]  # ranks that are alike need one arrow
    number = np.arange(len(entries)) - np.searchsorted(meeting[entries], meeting[entries])
    source = last[meeting[entries]]
    computed = came[source] - step.ready[rank[source], place[source]]
    waited = latest[entries] - came[entries]
    kept = (number < _EACH) & (waited >= _LEAST) & (computed > 0)
    entries, source, computed, waited = entries[kept], source[kept], computed[kept], waited[kept]
    return np.stack([step.gpus[rank[source]], came[source] - np.minimum(computed // 2, _WITHIN),
                     step.gpus[rank[entries]], latest[entries] - np.minimum(waited // 2, _WITHIN), waited], axis=1)
