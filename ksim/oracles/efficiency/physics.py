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
    """Of an array of kernels; `seconds` is the reference that a learned efficiency multiplies.

    `compute` is FLOP over the peak with wave quantisation, `memory` bytes over
    the bandwidth, both in seconds.  `waves` and `idle` are of the launch assumed, `launch` its place in the family's
    `LAUNCHES`.  `features` has a row a kernel and a column for each of the
    family's `FEATURES`, none of which has a dimension; `further` works out more
    of them by name, for models that look at them.
    """

    seconds: Array
    compute: Array
    memory: Array
    waves: Array
    idle: Array
    launch: NDArray[np.intp]
    features: Array
    further: Callable[[tuple[str, ...]], Sequence[Array]] = _nothing
