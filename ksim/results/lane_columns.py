"""The timelines and the paces of steps as columns of (lanes,)."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np
from attrs import define, field

from ksim.flow.spans import Spans
from ksim.flow.stretch import Lanes, Paces, Stretch
from ksim.flow.timeline import Lap
from ksim.results.arrays import Floats, Ints, each, offsets

T = TypeVar("T")


@define(eq=False, slots=False)
class LaneColumns:
    """Lanes step by step, those of a step stage by stage."""

    stretches: Sequence[Stretch]
    _totals: dict[str, Floats] = field(factory=dict, init=False)
    _paces: dict[str, Floats] = field(factory=dict, init=False)

    def __len__(self) -> int:
        return int(self._first[-1])

    @cached_property
    def _first(self) -> Ints:
        """Where the lanes of each stretch begin, and the last end."""
        return offsets(each(self.stretches, lambda stretch: len(stretch) * len(stretch.lanes)))

    def total(self, name: str) -> Floats:
        """That number of each timeline."""
        if name not in self._totals:
            self._totals[name] = self._column(lambda stretch: stretch.lanes, name)
        return self._totals[name]

    def pace(self, name: str) -> Floats:
        """That number of each `Pace`."""
        if name not in self._paces:
            self._paces[name] = self._column(lambda stretch: stretch.paces, name)
        return self._paces[name]

    def _column(self, of: Callable[[Stretch], Sequence[Lanes | Paces]], name: str) -> Floats:
        pieces = [np.stack([getattr(stage, name) for stage in of(stretch)], axis=1).ravel()
                  for stretch in self.stretches if len(stretch.lanes)]
        return np.concatenate([np.zeros(0), *pieces])

    def drawn(self) -> Floats:
        """Joules of one rank beyond idle power, as `Timeline.drawn` has them."""
        time, energy, power = (self.pace(name) for name in ("time", "energy", "power"))
        busy = (power - 1.0) * self.total("busy_joules") + power * (time - 1.0) * self.total("clocked_joules")
        return self.total("joules") + (energy - 1.0) * self.total("core_joules") + busy

    @cached_property
    def laps(self) -> list[Sequence[Lap]]:
        return self._listed(lambda lanes: lanes.laps)

    @cached_property
    def launch(self) -> list[str]:
        return self._listed(lambda lanes: lanes.launch)

    def _listed(self, of: Callable[[Lanes], Sequence[T]]) -> list[T]:
        found: list[T] = []
        for stretch in self.stretches:
            if len(stretch.lanes) == 1:
                found += of(stretch.lanes[0])
            else:
                found += [value for values in zip(*map(of, stretch.lanes), strict=True) for value in values]
        return found

    @cached_property
    def stage(self) -> Ints:
        """Which pipeline stage each is of."""
        pieces = [np.tile(np.arange(len(stretch.lanes)), len(stretch)) for stretch in self.stretches]
        return np.concatenate([np.zeros(0, np.int64), *pieces])

    def fills(self) -> tuple[Ints, Ints, list[Spans]]:
        """All fills: which lane each is of, how often it runs there, and the spans, in pieces."""
        pieces = [(self._rows(place, stage)[filled.rows], np.full(len(filled), filled.repeat), Spans.filled(filled))
                  for place, stretch in enumerate(self.stretches) for stage, lanes in enumerate(stretch.lanes)
                  for filled in lanes.filled]
        rows, repeats = (np.concatenate([np.zeros(0, np.int64), *(piece[column] for piece in pieces)])
                         for column in range(2))
        return rows, repeats, [spans for _, _, spans in pieces]

    def _rows(self, place: int, stage: int) -> Ints:
        """The lanes of one stage of the stretch at *place*."""
        return np.arange(self._first[place] + stage, self._first[place + 1], len(self.stretches[place].lanes))

    def pieces(self, rows: Ints) -> Iterator[tuple[Ints, Lanes, Ints]]:
        """Lanes of one stage by the columns that they are in: which of *rows*, these columns, and where therein."""
        places = np.searchsorted(self._first, rows, side="right") - 1
        for place in np.unique(places).tolist():
            which, lanes = np.flatnonzero(places == place), self.stretches[place].lanes
            steps, stages = np.divmod(rows[which] - self._first[place], len(lanes))
            yield which, lanes[int(stages[0])], steps
