"""A run as a trace for ui.perfetto.dev: kernels of every rank, steps, requests and counters on one clock.

The format is Chrome's trace event JSON; times are in microseconds from the start of the run, to the nanosecond.
Kernels have a slice on each of their ranks, copies of KV one on tracks of each engine and direction.
"""

import gzip
import json
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field, frozen

from ksim.flow.events import Copied, RanksMet
from ksim.flow.steps import KernelColumns, KernelKind, PricedBlock
from ksim.results.history import History
from ksim.results.steps import Floats, Ints, StageSteps, each, offsets
from ksim.views.perfetto.requests import (
    REQUEST_EVENTS,
    Transfers,
    flows,
    link_counters,
    process,
    request_spans,
    side_by_side,
    transfer_slices,
)
from ksim.views.perfetto.tracks import (
    FIRST_RANK,
    Column,
    StageTimes,
    adapter_slices,
    counters,
    engine_process,
    host_slices,
    lines,
    name_of,
    picked,
    process_names,
    step_slices,
    thousandths,
    whole,
)

#: Kernel slices beyond this are left out unless a window asks for them.
KERNEL_BUDGET = 50_000
#: Steps, counters and requests beyond this many events are thinned out.
EVENT_BUDGET = 1_000_000
_STEP_EVENTS = 8

# Higher levels take several times as long for a tenth of the size.
_LEVEL = 3


def write_trace(history: History, path: Path, window: tuple[float, float] | None = None, model: str = "",
                subject: str = "") -> None:
    """Write a gzipped trace to *path*; the same run gives the same bytes.

    Kernels are shown for the steps that touch *window*, (from, to) in seconds, or
    else for the first steps up to about `KERNEL_BUDGET` slices.  The *model* names the engines, the *subject* of the
    run its requests.
    """
    with path.open("wb") as file, gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed:
        for piece in trace(history, window, model, subject):
            packed.write(piece)


def trace(history: History, window: tuple[float, float] | None = None, model: str = "",
          subject: str = "") -> Iterator[bytes | memoryview]:
    """The text of the trace, in pieces, as `write_trace` writes it."""
    timed = StageTimes.of(history)
    kernels = timed.within(window) if window else timed.first(KERNEL_BUDGET)
    events = _STEP_EVENTS * len(history.steps) + REQUEST_EVENTS * len(history.requests)
    stride = -(-events // EVENT_BUDGET) or 1
    notes = json.dumps(_notes(timed, kernels, stride))
    yield f'{{"displayTimeUnit":"ms","otherData":{notes},"traceEvents":[\n'.encode()
    yield ",\n".join(process_names(history, model, subject)).encode()
    yield from request_spans(history, stride)
    yield from step_slices(timed, stride)
    yield from host_slices(history, stride)
    yield from adapter_slices(history)
    transfers = Transfers.of(history)
    yield from transfer_slices(history, transfers, stride)
    yield from flows(timed, transfers, stride)
    yield from counters(history, stride)
    yield from link_counters(history, stride)
    yield from copy_slices(history, stride)
    if history.log.has(RanksMet):
        from ksim.views.perfetto.ranks import rank_tracks  # few runs have ranks that differ

        yield from rank_tracks(history, window, stride)
    yield from kernel_slices(timed, kernels)
    yield from cut_marks(timed, kernels)
    yield b"\n]}\n"


def _notes(timed: StageTimes, kernels: np.ndarray[Any, Any], stride: int) -> dict[str, Any]:
    """Notes on what the trace holds and what was left out of it."""
    shown, total = int(timed.slices[kernels].sum()), int(timed.slices.sum())
    notes = {"kernel_slices": shown, "kernel_slices_left_out": total - shown}
    if stride > 1:
        return {**notes, "note": f"of steps, counters and requests, one in {stride} is shown"}
    return notes


@define(eq=False)
class Described:
    """The kernels of stage steps, one by one; most are the same in all stage steps with the same blocks.

    They are columns of (5, kernels): seconds, whether compute limits them, hidden seconds, whether they share the GPU
    with products, and the place in `texts` of the text that tells what runs.
    """

    stage_steps: StageSteps
    texts: list[str] = field(factory=list)
    _plans: dict[int, Floats] = field(factory=dict)

    def kernels(self, rows: Ints) -> tuple[Ints, Floats]:
        """The number of kernels of each stage step at *rows*, which are of one stage, on one rank, and all of them."""
        tables = [self._plan(self.stage_steps.blocks[row]) for row in rows.tolist()]
        sizes, table = each(tables, lambda one: one.shape[1]), np.concatenate(tables, axis=1)
        (own, first), depending = self._batch_kernels(rows), np.flatnonzero(table[-1] < 0)
        row, number = np.repeat(np.arange(len(rows)), sizes)[depending], -1 - table[-1, depending].astype(np.int64)
        table[:, depending] = own[:, first[row] + number]
        return sizes, table

    def _plan(self, blocks: tuple[PricedBlock, ...]) -> Floats:
        """The kernels of *blocks*; one that depends on the batch has -1 - its number as its text, and nothing else."""
        if id(blocks) not in self._plans:
            rows = [np.tile(self._block(block), block.repeat) for block in blocks if block.places]
            self._plans[id(blocks)] = np.concatenate([np.zeros((5, 0)), *rows], axis=1)
        return self._plans[id(blocks)]

    def _block(self, block: PricedBlock) -> Floats:
        places = np.array(block.places)
        table, known = np.zeros((5, len(places))), places >= 0
        table[-1] = places
        table[:, known] = self._columns(block.kernels, places[known])
        return table

    def _batch_kernels(self, rows: Ints) -> tuple[Floats, Ints]:
        """The kernels of *rows* that depend on the batch, row by row in order of their numbers, and where each begins.
        """
        columns, places = [np.zeros((5, 0))], [np.zeros(0, np.int64)]
        for which, costs, steps in self.stage_steps.pieces(rows):
            for batch in costs.batch_kernels:
                index = np.searchsorted(batch.rows, steps)
                there = np.append(batch.rows, -1)[index] == steps
                places.append(which[there])
                columns.append(self._columns(batch.kernels, index[there]))
        whose = np.concatenate(places)
        order = np.argsort(whose, kind="stable")
        return np.concatenate(columns, axis=1)[:, order], offsets(np.bincount(whose, minlength=len(rows)))

    def _columns(self, kernels: KernelColumns, places: Ints) -> Floats:
        """The columns of the *kernels* at these *places*."""
        some, first = kernels.taken(places), len(self.texts)
        kinds = [kernels.kinds[kind] for kind in some.kind.tolist()]
        numbers = zip(some.waves.tolist(), some.idle.tolist(), some.costs.flops.tolist(), some.costs.bytes.tolist(),
                      strict=True)
        self.texts += [_text(kind, shape, *rest) for kind, shape, rest in zip(kinds, some.shapes, numbers, strict=True)]
        computes = [kind.bound == "compute" for kind in kinds]
        links = [bool(kind.group) and (kind.sms > 0 or hidden > 0)
                 for kind, hidden in zip(kinds, some.hidden.tolist(), strict=True)]
        return np.stack([some.costs.seconds, computes, some.hidden, links, first + np.arange(len(places))])


def _text(kind: KernelKind, shape: str, waves: float, idle: float, flops: float, moved: float) -> str:
    """The part of a slice that tells what runs."""
    share = f'"sms":{kind.sms},' if kind.sms else ""
    return (f'"name":{quoted(kind.label)},"cat":{quoted(kind.family)},"args":{{"shape":{quoted(shape)},'
            f'"launch":{quoted(kind.launch)},"bound":"{kind.bound}",{share}"waves":{waves:.4g},"idle_sms":{idle:.4g},'
            f'"flops":{flops:.6g},"bytes":{moved:.6g}}}}}')


#: Where ranks compute and communicate at once, the latter has a thread of its own.
_FIRST_LINK = 10_100
#: StageTimes whose kernels are written at once.
_BLOCK = 8
_BEGIN = "kernels begin here: others with --trace-window FROM:TO"
_END = "kernels end here: others with --trace-window FROM:TO"


def kernel_slices(timed: StageTimes, rows: Ints) -> Iterator[bytes | memoryview]:
    """The kernels of the stage steps at *rows*, on every rank of their stage."""
    described, named = Described(timed.history.steps.stage_steps), set[tuple[int, int]]()
    for index, stage, block in _blocks(timed, rows):
        played = _written(described, _played(timed, described, block))
        ranks = timed.history.engines[index].ranks
        for rank in range(stage * ranks, (stage + 1) * ranks):
            own, link = (lines(f',\n{{"ph":"X","pid":{engine_process(index)},"tid":{first + rank},"ts":', *slices)
                         for first, slices in zip((FIRST_RANK, _FIRST_LINK), played, strict=True))
            yield own
            if link and (index, rank) not in named:
                named.add((index, rank))
                yield (",\n" + name_of("thread", engine_process(index), _FIRST_LINK + rank,
                                       f"rank {rank}, communication", FIRST_RANK + rank)).encode()
            yield link


def cut_marks(timed: StageTimes, rows: Ints) -> Iterator[bytes]:
    """Marks on every rank where the kernels of *rows* begin and end, if there are others before or after."""
    stages = np.stack([timed.history.steps.engine[timed.history.steps.stage_step_rows], timed.stage], axis=1)
    for index, stage in np.unique(stages, axis=0).tolist():
        mine = (stages == (index, stage)).all(axis=1)
        shown = rows[mine[rows]]
        begin, end = ((int(timed.begin[shown].min()), int(timed.end[shown].max())) if len(shown) else (0, 0))
        for there, time, text in ((timed.begin[mine] < begin, begin, _BEGIN), (timed.end[mine] > end, end, _END)):
            ranks = timed.history.engines[index].ranks
            for rank in range(stage * ranks, (stage + 1) * ranks) if there.any() else ():
                yield (f',\n{{"name":"{text}","ph":"i","s":"t","pid":{engine_process(index)},"tid":{FIRST_RANK + rank}'
                       f',"ts":{time // 1000}.{time % 1000:03}}}').encode()


def _blocks(timed: StageTimes, rows: Ints) -> Iterator[tuple[int, int, Ints]]:
    """A few of *rows* at a time, of one stage of one engine: the place of the engine, the stage, and the rows."""
    index, stage = timed.history.steps.engine[timed.history.steps.stage_step_rows[rows]], timed.stage[rows]
    for one, other in np.unique(np.stack([index, stage], axis=1), axis=0).tolist():
        found = rows[(index == one) & (stage == other)]
        for begin in range(0, len(found), _BLOCK):
            yield one, other, found[begin: begin + _BLOCK]


@frozen(eq=False)
class _Played:
    """When kernels begin and how long they last, in nanoseconds.

    `link` says which share the GPU with products, and `text` which text describes each.
    """

    begin: Ints
    lasts: Ints
    link: Ints
    text: Ints


def _played(timed: StageTimes, described: Described, rows: Ints) -> _Played:
    """The kernels of one rank in the stage steps at *rows*, at the clock of these."""
    sizes, (seconds, computes, hidden, link, text) = described.kernels(rows)
    slower = np.repeat(timed.history.steps.stage_steps.scaling.time[rows], sizes)
    lasts = np.split(seconds * np.where(computes > 0, slower, 1.0), offsets(sizes)[1:-1])
    begin, end = np.repeat(timed.begin[rows], sizes), np.repeat(timed.end[rows], sizes)
    until = np.minimum(begin + np.rint(1e9 * np.concatenate([*map(np.cumsum, lasts)])).astype(np.int64), end)
    follows = np.diff(np.repeat(np.arange(len(rows)), sizes)) == 0
    begin[1:][follows] = until[:-1][follows]
    last, beside = until.copy(), np.flatnonzero(hidden)
    # What is hidden beside the next begins with it, and ends before; messages may be hidden beside several, in part.
    last[beside] += np.rint(1e9 * hidden[beside]).astype(np.int64)
    products = beside[link[beside] == 0]
    last[products] = np.minimum(last[products], until[products + 1])
    return _Played(begin, last - begin, link.astype(np.int64), text.astype(np.int64))


def _written(described: Described, played: _Played) -> list[list[str | Column]]:
    """The columns after the thread: of kernels that have the GPU to themselves, and of those that share it."""
    return [_lines(described, played.begin[of], played.lasts[of], played.text[of])
            for of in (played.link == 0, played.link > 0)]


def _lines(described: Described, begin: Ints, lasts: Ints, text: Ints) -> list[str | Column]:
    used = np.unique(text)
    texts = picked([described.texts[each] for each in used.tolist()], np.searchsorted(used, text))
    return [thousandths(begin), ',"dur":', thousandths(lasts), ",", texts]


#: Copies that are written at once.
_COPIES_BLOCK = 1 << 12


def copy_slices(history: History, stride: int) -> Iterator[bytes | memoryview]:
    """The names of the tracks, and the copies of every *stride*-th request."""
    copies = history.events[Copied]
    if not len(copies["time"]):
        return
    of = process(history) + 2
    yield (",\n" + name_of("process", of, 0, "KV copies")).encode()
    begin, end = (np.rint(1e9 * copies[name]).astype(np.int64) for name in ("began", "time"))
    order = np.argsort(begin, kind="stable")
    order = order[history.copied_rows[order] % stride == 0]
    ways, numbers = np.unique([f"engine {engine}: {source} to {target}" for engine, source, target in zip(
        *(copies[name][order].tolist() for name in ("engine", "source", "target")), strict=True)], return_inverse=True)
    track, tracks = side_by_side(numbers, begin[order], end[order])
    for number, way in enumerate(tracks):
        yield (",\n" + name_of("thread", of, 1 + number, str(ways[way]))).encode()
    for first in range(0, len(order), _COPIES_BLOCK):
        some, on = order[first: first + _COPIES_BLOCK], track[first: first + _COPIES_BLOCK]
        yield lines(
            ',\n{"name":"request ', whole(copies["request_id"][some]), f'","ph":"X","pid":{of},"tid":',
            whole(1 + on), ',"ts":', thousandths(begin[some]), ',"dur":', thousandths((end - begin)[some]),
            ',"args":{"bytes":', whole(np.rint(copies["bytes"][some]).astype(np.int64)),
            ',"tokens":', whole(copies["tokens"][some]), "}}")
