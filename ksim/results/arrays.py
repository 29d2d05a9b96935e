"""Small NumPy helpers that turn records into columns."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
#: Integers in very long arrays.
Places = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


def floats(records: Sequence[Any], name: str) -> Floats:
    """Attribute *name* of each record; dots reach into it."""
    return np.fromiter(map(attrgetter(name), records), np.float64, len(records))


def ints(records: Sequence[Any], name: str) -> Ints:
    """Attribute *name* of each record; dots reach into it."""
    return np.fromiter(map(attrgetter(name), records), np.int64, len(records))


def each(records: Sequence[Any], value: Callable[[Any], int]) -> Ints:
    """*value* of each record."""
    return np.fromiter(map(value, records), np.int64, len(records))


def codes(keys: Iterable[Any]) -> tuple[Ints, list[Any]]:
    """Number the distinct keys in order of appearance: (the number of each key, the distinct keys)."""
    known: dict[Any, int] = {}
    numbers = [known.setdefault(key, len(known)) for key in keys]
    return np.array(numbers, dtype=np.int64), list(known)


def sums(groups: Ints | Places, amounts: Floats | Ints | Places | Bools, count: int) -> Floats:
    """Add up the amounts of each of *count* groups."""
    return np.bincount(groups, weights=amounts, minlength=count).astype(np.float64, copy=False)


def offsets(counts: Ints) -> Ints:
    """The places where groups of these sizes begin, stored one after another, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def shares(parts: Floats, wholes: Floats | Ints | float, otherwise: float = 0.0) -> Floats:
    """*parts* / *wholes*, element by element; *otherwise* where the whole is 0."""
    divisors = np.broadcast_to(np.asarray(wholes, np.float64), parts.shape)
    quotients = np.full(parts.shape, otherwise)
    np.divide(parts, divisors, out=quotients, where=divisors > 0)
    return quotients


def product(one: Floats, other: Floats | Ints) -> float:
    """The sum of *one* times *other*, pair by pair.  Unlike BLAS's, it is the same on any number of cores."""
    return float((one * other).sum())


def ratio(part: float, whole: float) -> float | None:
    """*part* / *whole*, or None if the whole is 0."""
    return float(part / whole) if whole else None
