"""Spans as columns: what `Span` says of one kernel, for many."""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.flow.bounds import BOUNDS
from ksim.flow.filled import Filled
from ksim.flow.timeline import Span

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The numbers of a span that are columns.
NUMBERS = ("seconds", "joules", "flops", "bytes", "waves", "idle", "eta", "low", "high", "extrapolated", "core_joules",
           "busy_joules", "hidden")


@frozen
class Kind:
    """What spans have in common that differ in their numbers and shapes only."""

    label: str
    family: str
    bound: str = "memory"
    group: str = ""
    launch: str = ""
    source: str = ""

    @property
    def clocked(self) -> bool:
        """Whether the SM clock sets their pace."""
        return self.bound == "compute"


_KIND = attrgetter("label", "family", "bound", "group", "launch", "source")


@frozen(eq=False)
class Spans:
    """Spans as columns of (spans,): which of `kinds` each is, its shape as it prints, and numbers as in `Span`."""

    kinds: Sequence[Kind]
    kind: Ints
    shapes: Sequence[str]
    seconds: Floats
    joules: Floats
    flops: Floats
    bytes: Floats
    waves: Floats
    idle: Floats
    eta: Floats
    low: Floats
    high: Floats
    extrapolated: Floats
    core_joules: Floats
    busy_joules: Floats
    hidden: Floats

    def __len__(self) -> int:
        return len(self.kind)

    @classmethod
    def of(cls, spans: Sequence[Span]) -> "Spans":
        """Those of *spans*."""
        known: dict[tuple[str, ...], int] = {}
        kind = np.fromiter((known.setdefault(key, len(known)) for key in map(_KIND, spans)), np.int64, len(spans))
        numbers = chain.from_iterable(map(attrgetter(*NUMBERS), spans))
        table = np.fromiter(numbers, np.float64, len(spans) * len(NUMBERS)).reshape(-1, len(NUMBERS)).T.copy()
        return cls([Kind(*key) for key in known], kind, [str(span.shape) for span in spans], *table)

    def taken(self, rows: Ints) -> "Spans":
        """Those at *rows*, as often as they are there."""
        columns = (getattr(self, name)[rows] for name in NUMBERS)
        return Spans(self.kinds, self.kind[rows], [self.shapes[row] for row in rows.tolist()], *columns)

    @classmethod
    def filled(cls, fills: Filled) -> "Spans":
        """Those of *fills*."""
        sizes = (len(BOUNDS), len(fills.launches), len(fills.sources))
        number = np.ravel_multi_index((fills.bound, fills.launch, fills.source), sizes)
        there = np.bincount(number, minlength=int(np.prod(sizes))) > 0
        codes, kind = np.flatnonzero(there), (np.cumsum(there) - 1)[number]
        kinds = [Kind(fills.label, fills.family, BOUNDS[bound], "", fills.launches[launch], fills.sources[source])
                 for bound, launch, source in zip(*np.unravel_index(codes, sizes), strict=True)]
        columns = {name: getattr(fills, name).astype(np.float64, copy=False) for name in NUMBERS if name != "hidden"}
        return cls(kinds, kind, fills.texts(), **columns, hidden=np.zeros(len(fills)))

    @classmethod
    def joined(cls, pieces: Sequence["Spans"]) -> "Spans":
        """All of *pieces*, one after another."""
        known: dict[Kind, int] = {}
        numbers = [np.array([known.setdefault(kind, len(known)) for kind in piece.kinds], dtype=np.int64)[piece.kind]
                   for piece in pieces]
        columns = [_joined(getattr(piece, name) for piece in pieces) for name in NUMBERS]
        shapes = list(chain.from_iterable(piece.shapes for piece in pieces))
        return cls(list(known), np.concatenate([np.zeros(0, np.int64), *numbers]), shapes, *columns)


def _joined(columns: Iterable[Floats]) -> Floats:
    return np.concatenate([np.zeros(0), *columns])
