"""What runs when: a slice for every kernel on each of its ranks."""

import json
from collections.abc import Iterator

import numpy as np
from attrs import define, field, frozen

from ksim.flow.timeline import Lap, Span, Timeline
from ksim.results.arrays import Floats, Ints
from ksim.results.perfetto.lanes import Lanes
from ksim.results.perfetto.slices import FIRST_RANK, engine_process, name_of
from ksim.results.perfetto.text import lines, picked, thousandths

#: Where ranks compute and communicate at once, the latter has a thread of its own.
_FIRST_LINK = 10_100
#: Lanes whose kernels are written at once.
_BLOCK = 16


def kernel_slices(lanes: Lanes, rows: Ints) -> Iterator[str]:
    """The kernels of the lanes at *rows*, on every rank of their stage."""
    steps, kernels, named = lanes.history.steps, _Kernels(), set[tuple[int, int]]()
    pace = steps.lanes.pace("time")
    for begin in range(0, len(rows), _BLOCK):
        block = rows[begin: begin + _BLOCK].tolist()
        played = [kernels.played(steps.lanes.timeline(row), float(pace[row]), int(lanes.begin[row]),
                                 int(lanes.end[row])) for row in block]
        for row, texts in zip(block, kernels.texts(played), strict=True):
            place = int(steps.engine[steps.lane_step[row]])
            ranks, stage = lanes.history.engines[place].ranks, int(lanes.stage[row])
            for rank in range(stage * ranks, (stage + 1) * ranks):
                yield from _on_rank(texts, engine_process(place), rank, named)


def _on_rank(texts: list[str], process: int, rank: int, named: set[tuple[int, int]]) -> Iterator[str]:
    """The slices of one rank, and the name of its thread for communication before the first slice there."""
    for first, text in zip((FIRST_RANK, _FIRST_LINK), texts, strict=True):
        if text:
            yield text.replace("\0", f',\n{{"ph":"X","pid":{process},"tid":{first + rank},')[2:]
    if texts[1] and (process, rank) not in named:
        named.add((process, rank))
        yield name_of("thread", process, _FIRST_LINK + rank, f"rank {rank}, communication", FIRST_RANK + rank)


@frozen(eq=False)
class _Played:
    """When the kernels of one rank in one step begin, and how long they last, in nanoseconds; which share the GPU with
    products, and which text describes each."""

    begin: Ints
    lasts: Ints
    link: Ints
    text: Ints


@define(eq=False)
class _Kernels:
    """The kernels of lanes, unfolded, of which those with the same laps have most in common."""

    _texts: list[str] = field(factory=list)
    _shapes: dict[int, Floats] = field(factory=dict)

    def played(self, lane: Timeline, pace: float, begin: int, end: int) -> _Played:
        """Those of one rank in one step, clocked ones at *pace*."""
        key = id(lane.laps)
        if key not in self._shapes:
            self._shapes[key] = self._shape(lane.laps)
        table = self._shapes[key].copy()
        for number, span in enumerate(lane.fills):
            holes = table[-1] == -1 - number
            table[:, holes] = self._row(span)[:, None]
        seconds, clocked, hidden, link, text = table
        ends = np.cumsum(seconds * np.where(clocked > 0, pace, 1.0))
        edges = np.concatenate([[begin], np.minimum(begin + np.rint(1e9 * ends).astype(np.int64), end)])
        last = edges[1:].copy()
        beside = np.flatnonzero(hidden)
        # What is hidden ends before the next, which begins with it.
        last[beside] = np.minimum(edges[beside] + np.rint(1e9 * hidden[beside]).astype(np.int64), edges[beside + 2])
        return _Played(edges[:-1], last - edges[:-1], link.astype(np.int64), text.astype(np.int64))

    def _shape(self, laps: tuple[Lap, ...]) -> Floats:
        """What `_row` says of each span of *laps*; of holes, only -1 - the number of the fill as its text."""
        rows = [np.tile(np.stack([np.array([0.0, 0.0, 0.0, 0.0, -1.0 - span]) if isinstance(span, int)
                                  else self._row(span) for span in lap.spans], axis=1), lap.repeat)
                for lap in laps if lap.spans]
        return np.concatenate([np.zeros((5, 0)), *rows], axis=1)

    def _row(self, span: Span) -> Floats:
        self._texts.append(_described(span))
        link = bool(span.group and span.sms)
        return np.array([span.seconds, span.clocked, span.hidden, link, len(self._texts) - 1.0])

    def texts(self, played: list[_Played]) -> Iterator[list[str]]:
        """For each lane its slices, and those that share the GPU with products, without what ranks differ in; each
        slice begins with a zero byte."""
        lane = np.repeat(np.arange(len(played)), [len(one.begin) for one in played])
        group = 2 * lane + np.concatenate([one.link for one in played])
        order = np.argsort(group, kind="stable")
        begin, lasts, text = (np.concatenate([getattr(one, name) for one in played])[order]
                              for name in ("begin", "lasts", "text"))
        whole, bounds = lines('\0"ts":', thousandths(begin), ',"dur":', thousandths(lasts), ",",
                              picked(self._texts, text))
        edges = bounds[np.searchsorted(group[order], np.arange(2 * len(played) + 1))].tolist()
        for place in range(0, 2 * len(played), 2):
            yield [whole[edges[at]: edges[at + 1]].decode() for at in (place, place + 1)]


def _described(span: Span) -> str:
    """The part of a slice that tells what runs."""
    name, family, shape, launch = (json.dumps(str(text)) for text in (span.label, span.family, span.shape, span.launch))
    sms = f'"sms":{span.sms},' if span.sms else ""
    return (f'"name":{name},"cat":{family},"args":{{"shape":{shape},"launch":{launch},"bound":"{span.bound}",'
            f'{sms}"waves":{span.waves:.4g},"idle_sms":{span.idle:.4g},"flops":{span.flops:.6g},'
            f'"bytes":{span.bytes:.6g}}}}}')
