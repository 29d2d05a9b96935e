"""What runs when: a slice for every kernel on each of its ranks."""

from collections.abc import Iterator

import numpy as np
from attrs import frozen

from ksim.report.perfetto.described import Described
from ksim.report.perfetto.lanes import Lanes
from ksim.report.perfetto.slices import FIRST_RANK, engine_process, name_of
from ksim.report.perfetto.text import Column, lines, picked, thousandths
from ksim.results.arrays import Ints, offsets

#: Where ranks compute and communicate at once, the latter has a thread of its own.
_FIRST_LINK = 10_100
#: Lanes whose kernels are written at once.
_BLOCK = 8
_BEGIN = "kernels begin here: others with --trace-window FROM:TO"
_END = "kernels end here: others with --trace-window FROM:TO"


def kernel_slices(lanes: Lanes, rows: Ints) -> Iterator[bytes | memoryview]:
    """The kernels of the lanes at *rows*, on every rank of their stage."""
    described, named = Described(lanes.history.steps.lanes), set[tuple[int, int]]()
    for place, stage, block in _blocks(lanes, rows):
        played = _written(described, _played(lanes, described, block))
        ranks = lanes.history.engines[place].ranks
        for rank in range(stage * ranks, (stage + 1) * ranks):
            own, link = (lines(f',\n{{"ph":"X","pid":{engine_process(place)},"tid":{first + rank},"ts":', *slices)
                         for first, slices in zip((FIRST_RANK, _FIRST_LINK), played, strict=True))
            yield own
            if link and (place, rank) not in named:
                named.add((place, rank))
                yield (",\n" + name_of("thread", engine_process(place), _FIRST_LINK + rank,
                                       f"rank {rank}, communication", FIRST_RANK + rank)).encode()
            yield link


def cut_marks(lanes: Lanes, rows: Ints) -> Iterator[bytes]:
    """On every rank, marks where the kernels of the lanes at *rows* begin and end, if there are others before or
    after."""
    stages = np.stack([lanes.history.steps.engine[lanes.history.steps.lane_step], lanes.stage], axis=1)
    for place, stage in np.unique(stages, axis=0).tolist():
        mine = (stages == (place, stage)).all(axis=1)
        shown = rows[mine[rows]]
        begin, end = ((int(lanes.begin[shown].min()), int(lanes.end[shown].max())) if len(shown) else (0, 0))
        for there, time, text in ((lanes.begin[mine] < begin, begin, _BEGIN), (lanes.end[mine] > end, end, _END)):
            ranks = lanes.history.engines[place].ranks
            for rank in range(stage * ranks, (stage + 1) * ranks) if there.any() else ():
                yield (f',\n{{"name":"{text}","ph":"i","s":"t","pid":{engine_process(place)},"tid":{FIRST_RANK + rank}'
                       f',"ts":{time // 1000}.{time % 1000:03}}}').encode()


def _blocks(lanes: Lanes, rows: Ints) -> Iterator[tuple[int, int, Ints]]:
    """Some *rows* at a time, of one stage of the engine at one place."""
    place, stage = lanes.history.steps.engine[lanes.history.steps.lane_step[rows]], lanes.stage[rows]
    for one, other in np.unique(np.stack([place, stage], axis=1), axis=0).tolist():
        found = rows[(place == one) & (stage == other)]
        for begin in range(0, len(found), _BLOCK):
            yield one, other, found[begin: begin + _BLOCK]


@frozen(eq=False)
class _Played:
    """When kernels of some lanes begin, and how long they last, in nanoseconds; which share the GPU with products, and
    which text describes each."""

    begin: Ints
    lasts: Ints
    link: Ints
    text: Ints


def _played(lanes: Lanes, described: Described, rows: Ints) -> _Played:
    """The kernels of one rank in the lanes at *rows*, those that compute limits at the clock of their lane."""
    sizes, (seconds, computes, hidden, link, text) = described.kernels(rows)
    slower = np.repeat(lanes.history.steps.lanes.scaling.time[rows], sizes)
    lasts = np.split(seconds * np.where(computes > 0, slower, 1.0), offsets(sizes)[1:-1])
    begin, end = np.repeat(lanes.begin[rows], sizes), np.repeat(lanes.end[rows], sizes)
    until = np.minimum(begin + np.rint(1e9 * np.concatenate([*map(np.cumsum, lasts)])).astype(np.int64), end)
    follows = np.diff(np.repeat(np.arange(len(rows)), sizes)) == 0
    begin[1:][follows] = until[:-1][follows]
    last, beside = until.copy(), np.flatnonzero(hidden)
    # What is hidden ends before the next, which begins with it.
    last[beside] = np.minimum(begin[beside] + np.rint(1e9 * hidden[beside]).astype(np.int64), until[beside + 1])
    return _Played(begin, last - begin, link.astype(np.int64), text.astype(np.int64))


def _written(described: Described, played: _Played) -> list[list[str | Column]]:
    """Those without what ranks differ in, and those of them that share the GPU with products: what follows the thread
    in each line."""
    return [_lines(described, played.begin[of], played.lasts[of], played.text[of])
            for of in (played.link == 0, played.link > 0)]


def _lines(described: Described, begin: Ints, lasts: Ints, text: Ints) -> list[str | Column]:
    used = np.unique(text)
    texts = picked([described.texts[each] for each in used.tolist()], np.searchsorted(used, text))
    return [thousandths(begin), ',"dur":', thousandths(lasts), ",", texts]
