"""How many prompts of a long closed loop to play, and what each of them stands for."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksim.oracles.efficiency.physics import Array

#: Tokens that a run may generate and still be played whole: the median run of the silicon samples takes a second then.
_WHOLE = 250_000
#: Fewest waves of a run that is not: the burst, three between, and the last.
_FEWEST = 5


def waves(concurrency: int, output: int, full: int) -> int:
    """How many of *full* waves of *concurrency* prompts to play.

    All where they generate few enough tokens; else as many as that leaves, and five at least.
    """
    return min(full, max(_FEWEST, _WHOLE // (concurrency * output)))


def prompts(concurrency: int, output: int, full: int) -> int:
    """How many prompts those waves have."""
    return concurrency * waves(concurrency, output, full)


def weights(concurrency: int, played: int, full: int) -> Array:
    """How many prompts of the *full* waves each of the *played* prompts stands for, in the order in which they came.

    The first wave, which comes all at once, and the last, in which concurrency
    falls, are as long as in the real run; those between stand for all between.
    """
    count = played // concurrency
    each = np.ones(played)
    if count < full:
        each[concurrency: played - concurrency] = (full - 2) / (count - 2)
    return each


def mean(values: Array, weight: Array) -> float:
    """The weighted mean of the *values* that there are; nan where none is."""
    known = ~np.isnan(values)
    return float(np.average(values[known], weights=weight[known])) if known.any() else float("nan")


def median(values: Array, weight: Array) -> float:
    """The smallest value that half of the weight does not pass; nan where there is none."""
    known = ~np.isnan(values)
    if not known.any():
        return float("nan")
    order: NDArray[Any] = np.argsort(values[known], kind="stable")
    share = np.cumsum(weight[known][order])
    return float(values[known][order][np.searchsorted(share, share[-1] / 2)])
