"""Spans of many steps as columns: what fills one hole of the laps in each of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from attrs import fields, frozen
from numpy.typing import NDArray

from ksim.flow.bounds import BOUNDS, COMPUTE
from ksim.flow.timeline import Span

__all__ = ["Codes", "Filled", "Fills", "Ints"]

#: Columns of numbers that spans have under the same name.
_NUMBERS = ("seconds", "joules", "flops", "bytes", "waves", "idle", "eta", "low", "high", "core_joules", "busy_joules")

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Codes = NDArray[np.int16]


@frozen(eq=False)
class Filled:
    """The spans called `label`, of one `family`, that steps `rows` have, each `repeat` times over.

    Columns of (spans,), in the order of `rows`, which ascend; they are named as in `Span`, and so are their units.
    `bound` has places in `BOUNDS`; `launch` and `source` have places in `launches` and `sources`.  `shape` gives the
    kernel of one, by its place in the columns, and `texts` says how those of all print.
    """

    label: str
    family: str
    repeat: int
    rows: Ints
    seconds: Floats
    joules: Floats
    flops: Floats
    bytes: Floats
    bound: Codes
    waves: Floats
    idle: Floats
    launch: Codes
    source: Codes
    eta: Floats
    low: Floats
    high: Floats
    extrapolated: NDArray[np.bool_]
    core_joules: Floats
    busy_joules: Floats
    launches: Sequence[str]
    sources: Sequence[str]
    shape: Callable[[int], Any]
    texts: Callable[[], Sequence[str]]

    def __len__(self) -> int:
        return len(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, shapes are made at last: what makes them need not be something that can be."""
        shapes = [self.shape(place) for place in range(len(self))]
        return Filled, (*(getattr(self, each.name) for each in fields(Filled)[:-2]), shapes.__getitem__,
                        [*self.texts()].copy)

    @classmethod
    def of(cls, spans: Sequence[Span], repeat: int, rows: Sequence[int] | Ints) -> "Filled":
        """Spans with one label and of one family, which have the GPU to themselves; there is at least one."""
        def column(name: str, kind: type) -> Any:
            return np.array([getattr(span, name) for span in spans], dtype=kind)

        def codes(name: str) -> tuple[Codes, list[str]]:
            names = {each: code for code, each in enumerate(dict.fromkeys(getattr(span, name) for span in spans))}
            return np.array([names[getattr(span, name)] for span in spans], dtype=np.int16), [*names]

        launch, launches = codes("launch")
        source, sources = codes("source")
        numbers = {name: column(name, np.float64) for name in _NUMBERS}
        return cls(
            spans[0].label, spans[0].family, repeat, np.asarray(rows, dtype=np.intp), **numbers, launch=launch,
            bound=np.array([BOUNDS.index(span.bound) for span in spans], dtype=np.int16), source=source,
            extrapolated=column("extrapolated", np.bool_), launches=launches, sources=sources,
            shape=[span.shape for span in spans].__getitem__, texts=lambda: [str(span.shape) for span in spans])

    @property
    def clocked(self) -> NDArray[np.bool_]:
        """Whether the SM clock sets their pace."""
        found: NDArray[np.bool_] = self.bound == COMPUTE
        return found

    def span(self, place: int) -> Span:
        """The one at *place* in the columns."""
        numbers: dict[str, Any] = {name: float(getattr(self, name)[place]) for name in _NUMBERS}
        return Span(self.label, self.family, bound=BOUNDS[self.bound[place]], launch=self.launches[self.launch[place]],
                    source=self.sources[self.source[place]], extrapolated=bool(self.extrapolated[place]),
                    shape=self.shape(place), **numbers)


@frozen(eq=False)
class Fills(Sequence[tuple[Span, ...]]):
    """The fills of steps, made of their columns when asked for; *filled* are in the order that steps have them in."""

    filled: Sequence[Filled]
    steps: int

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(self.steps))]
        if not -self.steps <= row < self.steps:
            raise IndexError(row)
        return tuple(self._of(row % self.steps))

    def _of(self, row: int) -> Iterator[Span]:
        for each in self.filled:
            place = int(np.searchsorted(each.rows, row))
            if place < len(each.rows) and each.rows[place] == row:
                yield each.span(place)
