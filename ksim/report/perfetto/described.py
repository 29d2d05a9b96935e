"""What a trace says of kernels, as columns."""

from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted

import numpy as np
from attrs import define, field

from ksim.flow.bounds import BOUNDS
from ksim.flow.filled import Filled
from ksim.flow.timeline import Lap, Span
from ksim.results.arrays import Floats, Ints, each, offsets
from ksim.results.lane_columns import LaneColumns

#: Columns of numbers that texts have, in the order in which `_text` takes them.
_TOLD = ("launch", "bound", "waves", "idle", "flops", "bytes")


@define(eq=False)
class Described:
    """The kernels of lanes, unfolded, of which those with the same laps have most in common.

    They are columns of (5, kernels): seconds, whether they are clocked, hidden seconds, whether they share the GPU with
    products, and which of `texts` tells what runs.
    """

    lanes: LaneColumns
    texts: list[str] = field(factory=list)
    _shapes: dict[int, Floats] = field(factory=dict)
    _printed: dict[int, list[str]] = field(factory=dict)

    def kernels(self, rows: Ints) -> tuple[Ints, Floats]:
        """How many kernels each of the lanes at *rows*, which are of one stage, has on one rank, and all of them."""
        tables = [self._shape(self.lanes.laps[row]) for row in rows.tolist()]
        sizes, table = each(tables, lambda one: one.shape[1]), np.concatenate(tables, axis=1)
        (fills, first), holes = self._fills(rows), np.flatnonzero(table[-1] < 0)
        lane, number = np.repeat(np.arange(len(rows)), sizes)[holes], -1 - table[-1, holes].astype(np.int64)
        table[:, holes] = fills[:, first[lane] + number]
        return sizes, table

    def _shape(self, laps: Sequence[Lap]) -> Floats:
        """Those of *laps*; of a hole, only -1 - the number of its fill as its text."""
        if id(laps) not in self._shapes:
            rows = [np.tile(np.stack([np.array([0.0, 0.0, 0.0, 0.0, -1.0 - span]) if isinstance(span, int)
                                      else self._column(span) for span in lap.spans], axis=1), lap.repeat)
                    for lap in laps if lap.spans]
            self._shapes[id(laps)] = np.concatenate([np.zeros((5, 0)), *rows], axis=1)
        return self._shapes[id(laps)]

    def _column(self, span: Span) -> Floats:
        self.texts.append(_text(span.label, span.family, str(span.shape), span.sms, span.launch, span.bound, span.waves,
                                span.idle, span.flops, span.bytes))
        return np.array([span.seconds, span.clocked, span.hidden, bool(span.group and span.sms), len(self.texts) - 1.0])

    def _fills(self, rows: Ints) -> tuple[Floats, Ints]:
        """The fills of the lanes at *rows*, lane by lane in order of their numbers, and where those of each begin."""
        found, lane = [np.zeros((5, 0))], [np.zeros(0, np.int64)]
        for which, lanes, steps in self.lanes.pieces(rows):
            for filled in lanes.filled:
                place = np.searchsorted(filled.rows, steps)
                there = np.append(filled.rows, -1)[place] == steps
                lane.append(which[there])
                found.append(self._filled(filled, place[there]))
        whose = np.concatenate(lane)
        order = np.argsort(whose, kind="stable")
        return np.concatenate(found, axis=1)[:, order], offsets(np.bincount(whose, minlength=len(rows)))

    def _filled(self, filled: Filled, places: Ints) -> Floats:
        """Some spans of *filled*, which have the GPU to themselves."""
        if id(filled) not in self._printed:
            self._printed[id(filled)] = [*filled.texts()]
        shapes, first = self._printed[id(filled)], len(self.texts)
        told = zip(*(getattr(filled, name)[places].tolist() for name in _TOLD), strict=True)
        self.texts += [
            _text(filled.label, filled.family, shapes[place], 0, filled.launches[launch], BOUNDS[bound], *rest)
            for place, (launch, bound, *rest) in zip(places.tolist(), told, strict=True)]
        nothing = np.zeros(len(places))
        return np.stack([filled.seconds[places], filled.clocked[places], nothing, nothing,
                         first + np.arange(len(places))])


def _text(label: str, family: str, shape: str, sms: int, launch: str, bound: str, waves: float, idle: float,
          flops: float, moved: float) -> str:
    """The part of a slice that tells what runs."""
    share = f'"sms":{sms},' if sms else ""
    return (f'"name":{quoted(label)},"cat":{quoted(family)},"args":{{"shape":{quoted(shape)},'
            f'"launch":{quoted(launch)},"bound":"{bound}",{share}"waves":{waves:.4g},"idle_sms":{idle:.4g},'
            f'"flops":{flops:.6g},"bytes":{moved:.6g}}}}}')
