"""A least-squares fit that leaves out outliers, and what it cannot tell from chance."""

from collections.abc import Mapping

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.validation.benchmarks.recorded import Floats

#: A share that is not so many standard errors from 0 is taken to be 0.
_SURE = 3.0
#: Less than all of a time cannot be taken away, give or take.
_WHOLE = -1.05
#: A residual is an outlier if it is so many deviations (of the median) from 0, and this many seconds at least.
_FAR, _LEAST = 6.0, 0.002
_ROUNDS = 4


@frozen
class Fit:
    """Values as a `constant` and `shares` of columns by name; `rest` is what is left of each, large for `outliers`."""

    constant: float
    shares: dict[str, float]
    rest: Floats
    outliers: NDArray[np.bool_]


def fitted(values: Floats, columns: Mapping[str, Floats], start: int = 0) -> Fit:
    """Fit *values* from *start* on by a constant and shares of *columns*.

    The share that is least sure is dropped until all that are left are.
    """
    names = list(columns)
    while True:
        matrix = np.stack([np.ones(len(values)), *(columns[name] for name in names)], axis=1)
        used, weights = _trimmed(matrix, values, start)
        sure = np.abs(weights[1:]) / _errors(matrix[used], values[used] - matrix[used] @ weights)[1:]
        sure[weights[1:] < _WHOLE] = 0.0
        if not names or sure.min() >= _SURE:
            break
        del names[int(sure.argmin())]
    rest: Floats = values - matrix @ weights
    out = ~used
    out[:start] = False
    return Fit(float(weights[0]), dict(zip(names, weights[1:].tolist(), strict=True)), rest, out)


def _trimmed(matrix: Floats, values: Floats, start: int) -> tuple[NDArray[np.bool_], Floats]:
    """Which rows of *matrix* are no outliers, and the weights of its columns that fit their *values* best."""
    used = np.arange(len(values)) >= start
    weights: Floats = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        weights = np.asarray(np.linalg.lstsq(matrix[used], values[used], rcond=None)[0], dtype=float)
        rest = np.abs(values - matrix @ weights)
        limit = max(_FAR * 1.4826 * float(np.median(rest[used])), _LEAST)
        kept = (rest <= limit) & (np.arange(len(values)) >= start)
        if kept.sum() <= 2 * matrix.shape[1] or (kept == used).all():
            break
        used = kept
    return used, weights


def _errors(matrix: Floats, rest: Floats) -> Floats:
    """The standard errors of the weights of the columns of *matrix*, with this *rest*."""
    freedom = max(1, len(rest) - matrix.shape[1])
    spread = np.linalg.pinv(matrix.T @ matrix) * float(rest @ rest) / freedom
    errors: Floats = np.sqrt(np.maximum(np.diag(spread), 0.0)) + 1e-6
    return errors
