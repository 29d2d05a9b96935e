"""What runs when: a slice for every kernel on each of its ranks."""

import json
from collections.abc import Iterator, Sequence

import numpy as np
from attrs import define, field, frozen

from ksim.flow.timeline import Lap, Span, Timeline
from ksim.results.arrays import Floats, Ints
from ksim.results.perfetto.lanes import Lanes
from ksim.results.perfetto.slices import FIRST_RANK, engine_process, name_of
from ksim.results.perfetto.text import Column, lines, picked, thousandths

#: Where ranks compute and communicate at once, the latter has a thread of its own.
_FIRST_LINK = 10_100
#: Lanes whose kernels are written at once.
_BLOCK = 8


def kernel_slices(lanes: Lanes, rows: Ints) -> Iterator[bytes | memoryview]:
    """The kernels of the lanes at *rows*, on every rank of their stage."""
    steps, kernels, named = lanes.history.steps, _Kernels(), set[tuple[int, int]]()
    pace = steps.lanes.pace("time")
    for place, stage, block in _blocks(lanes, rows):
        played = kernels.all([kernels.played(steps.lanes.timeline(row), float(pace[row]), int(lanes.begin[row]),
                                             int(lanes.end[row])) for row in block])
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


def _blocks(lanes: Lanes, rows: Ints) -> Iterator[tuple[int, int, list[int]]]:
    """Some *rows* at a time, of one stage of the engine at one place."""
    place, stage = lanes.history.steps.engine[lanes.history.steps.lane_step[rows]], lanes.stage[rows]
    for one, other in np.unique(np.stack([place, stage], axis=1), axis=0).tolist():
        found = rows[(place == one) & (stage == other)].tolist()
        for begin in range(0, len(found), _BLOCK):
            yield one, other, found[begin: begin + _BLOCK]


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

    def _shape(self, laps: Sequence[Lap]) -> Floats:
        """What `_row` says of each span of *laps*; of holes, only -1 - the number of the fill as its text."""
        rows = [np.tile(np.stack([np.array([0.0, 0.0, 0.0, 0.0, -1.0 - span]) if isinstance(span, int)
                                  else self._row(span) for span in lap.spans], axis=1), lap.repeat)
                for lap in laps if lap.spans]
        return np.concatenate([np.zeros((5, 0)), *rows], axis=1)

    def _row(self, span: Span) -> Floats:
        self._texts.append(_described(span))
        link = bool(span.group and span.sms)
        return np.array([span.seconds, span.clocked, span.hidden, link, len(self._texts) - 1.0])

    def all(self, played: list[_Played]) -> list[list[str | Column]]:
        """Those of some lanes without what ranks differ in, and those of them that share the GPU with products: what
        follows the thread in each line."""
        begin, lasts, link, text = (np.concatenate([getattr(one, name) for one in played])
                                    for name in ("begin", "lasts", "link", "text"))
        return [self._written(begin[of], lasts[of], text[of]) for of in (link == 0, link > 0)]

    def _written(self, begin: Ints, lasts: Ints, text: Ints) -> list[str | Column]:
        used = np.unique(text)
        described = picked([self._texts[each] for each in used.tolist()], np.searchsorted(used, text))
        return [thousandths(begin), ',"dur":', thousandths(lasts), ",", described]


def _described(span: Span) -> str:
    """The part of a slice that tells what runs."""
    name, family, shape, launch = (json.dumps(str(text)) for text in (span.label, span.family, span.shape, span.launch))
    sms = f'"sms":{span.sms},' if span.sms else ""
    return (f'"name":{name},"cat":{family},"args":{{"shape":{shape},"launch":{launch},"bound":"{span.bound}",'
            f'{sms}"waves":{span.waves:.4g},"idle_sms":{span.idle:.4g},"flops":{span.flops:.6g},'
            f'"bytes":{span.bytes:.6g}}}}}')
