"""Which spans ran how often, counted without unfolding a single step."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from ksim.flow.spans import Kind, Spans
from ksim.flow.timeline import Lap, Span
from ksim.results.arrays import Bools, Floats, Ints, codes, sums
from ksim.results.lane_columns import LaneColumns
from ksim.results.steps import Steps


@frozen(eq=False)
class Occurrences:
    """The distinct spans of a run, and in which lanes each runs how often.

    A lane is one step on one pipeline stage.  Lanes of one shape share their
    laps (the same object): the spans of laps stand here once per shape, with
    `place` the shape; the fills stand once per lane, with `place` the lane.
    """

    spans: Spans
    repeats: Ints
    place: Ints
    shared: Bools = field(repr=False)
    shape_of: Ints = field(repr=False)
    lanes: LaneColumns = field(repr=False)
    _columns: dict[str, Floats] = field(factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, steps: Steps) -> "Occurrences":
        lanes = steps.lanes
        shape_of, examples = _shapes(lanes.laps)
        places, spans, repeats = _laps(examples)
        fill_lanes, fill_repeats, fills = lanes.fills()
        return cls(
            Spans.joined([_spans(spans), *fills]),
            np.concatenate([repeats, fill_repeats]),
            np.concatenate([places, fill_lanes]),
            np.arange(len(spans) + len(fill_lanes)) < len(spans),
            shape_of,
            lanes,
        )

    def counts(self, weights: Floats | Ints) -> Floats:
        """How often each span ran, every lane counted as often as its weight says."""
        shapes = sums(self.shape_of, weights, int(self.shape_of.max(initial=-1)) + 1)
        own = np.count_nonzero(self.shared)  # those of laps stand first
        return np.asarray(self.repeats * np.concatenate([shapes[self.place[:own]], weights[self.place[own:]]]))

    def by_lane(self, groups: Ints, amounts: Floats, width: int) -> Floats:
        """The sum of *amounts* over the spans of each lane, apart for each of *width* groups: (lanes, width)."""
        own = np.count_nonzero(self.shared)  # those of laps stand first
        totals, shapes = amounts * self.repeats, int(self.shape_of.max(initial=-1)) + 1
        cells = self.place[:own] * width + groups[:own]
        found = sums(cells, totals[:own], shapes * width).reshape(shapes, width)[self.shape_of]
        filled, lanes, rest = groups[own:], self.place[own:], totals[own:]
        for group in np.flatnonzero(np.bincount(filled, minlength=width)).tolist():  # fills are of few
            which = filled == group
            found[:, group] += sums(lanes[which], rest[which], len(found))
        return found

    def spent(self, weights: Floats | Ints, name: str = "seconds") -> Floats:
        """How long each span ran at the pace of its lanes, every lane counted as often as its weight says.

        *name* may be `low` or `high`, for the ends of its interval.
        """
        slowed = self.counts(weights * (self.lanes.pace("time") - 1.0)) * self.column("clocked")
        return (self.counts(weights) + slowed) * self.column(name)

    def drawn(self, weights: Floats | Ints) -> Floats:
        """The joules of each span at the pace of its lanes, every lane counted as often as its weight says."""
        found = self.counts(weights) * self.column("joules")
        for lanes, spans in self._paced():
            found += self.counts(weights * lanes) * spans
        return found

    def seconds_by_lane(self, groups: Ints, width: int) -> Floats:
        """How long the spans of each lane ran, apart for each of *width* groups: (lanes, width)."""
        found, slowed = self.by_lane(groups, self.column("seconds"), width), self.lanes.pace("time") - 1.0
        if slowed.any():
            found += slowed[:, None] * self.by_lane(groups, self.column("seconds") * self.column("clocked"), width)
        return found

    def joules_by_lane(self, groups: Ints, width: int) -> Floats:
        """What the spans of each lane drew on one rank, apart for each of *width* groups: (lanes, width)."""
        found = self.by_lane(groups, self.column("joules"), width)
        for lanes, spans in self._paced():
            found += lanes[:, None] * self.by_lane(groups, spans, width)
        return found

    def _paced(self) -> list[tuple[Floats, Floats]]:
        """What joules are made of beside those at the boost clock, as in `Timeline.drawn`: factors of lanes and amounts
        of spans, to be multiplied and added up."""
        time, energy, power = (self.lanes.pace(name) for name in ("time", "energy", "power"))
        busy = self.column("busy_joules")
        paced = [(energy - 1.0, self.column("core_joules")), (power - 1.0, busy),
                 (power * (time - 1.0), busy * self.column("clocked"))]
        return [pair for pair in paced if pair[0].any()]

    def column(self, name: str) -> Floats:
        """That number of each span; `clocked` and `lasts` too."""
        if name not in self._columns:
            self._columns[name] = self._derived(name)
        return self._columns[name]

    def _derived(self, name: str) -> Floats:
        if name == "clocked":
            return np.asarray(self.of_kinds(lambda kind: kind.clocked), np.float64)
        if name == "lasts":
            return self.spans.seconds + self.spans.hidden
        return np.asarray(getattr(self.spans, name))

    def of_kinds(self, value: Callable[[Kind], Any]) -> Any:
        """What *value* makes of the kind of each span."""
        return np.array([value(kind) for kind in self.spans.kinds])[self.spans.kind]

    def groups(self, key: Callable[[Kind], Hashable]) -> tuple[Ints, list[Any]]:
        """Number the spans by what *key* makes of their kinds: (the number of each span, the distinct keys)."""
        numbers, keys = codes(map(key, self.spans.kinds))
        return numbers[self.spans.kind], keys


def _shapes(laps: Sequence[Sequence[Lap]]) -> tuple[Ints, list[Sequence[Lap]]]:
    """Number the laps of the lanes by identity: hashing or comparing them would walk every span."""
    ids = np.fromiter(map(id, laps), np.int64, len(laps))
    _, first, numbers = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)  # that of their appearance
    return np.argsort(order)[numbers], [laps[row] for row in first[order].tolist()]


def _laps(examples: list[Sequence[Lap]]) -> tuple[Ints, list[Span], Ints]:
    """The spans that belong to the laps themselves: (their shape, the spans, how often each runs)."""
    found = [
        (shape, span, lap.repeat)
        for shape, laps in enumerate(examples) for lap in laps for span in lap.spans if not isinstance(span, int)
    ]
    return _integers(row[0] for row in found), [row[1] for row in found], _integers(row[2] for row in found)


def _spans(spans: list[Span]) -> Spans:
    """Those of *spans* as columns; many are the same ones."""
    numbers, ids = codes(map(id, spans))
    by_id = dict(zip(map(id, spans), spans, strict=True))
    return Spans.of([by_id[key] for key in ids]).taken(numbers)


def _integers(values: Any) -> Ints:
    return np.fromiter(values, np.int64)
