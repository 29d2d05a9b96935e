"""What physics says about kernels before anything is learned: a reference time, and numbers without a dimension."""

from collections.abc import Callable, Sequence

import numpy as np
from attrs import frozen
from numpy.typing import ArrayLike, NDArray

__all__ = ["Array", "Physics", "doubles"]

Array = NDArray[np.float64]


def doubles(value: ArrayLike) -> Array:
    """*value* as an array of double precision, whatever a file kept."""
    return np.asarray(value, dtype=np.float64)


def _nothing(names: tuple[str, ...]) -> Sequence[Array]:
    if names:
        raise KeyError(f"the family has no feature {names[0]!r}")
    return []


@frozen
class Physics:
    """What physics says about an array of kernels; `seconds` is the reference that a learned efficiency multiplies.

    `compute` is FLOP over the peak with wave quantisation, `memory` bytes over the bandwidth, both in seconds.  `waves`
    and `idle` describe the launch assumed, `launch` is its place in the family's `LAUNCHES`.  `features` has a row for
    each kernel and a column for each of the family's `FEATURES`, which have no dimension; `further` works out more of
    them by name, for models that use them.
    """

    seconds: Array
    compute: Array
    memory: Array
    waves: Array
    idle: Array
    launch: NDArray[np.intp]
    features: Array
    further: Callable[[tuple[str, ...]], Sequence[Array]] = _nothing
