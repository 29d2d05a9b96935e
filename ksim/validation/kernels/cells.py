"""How far predictions are off, cell by cell: a GPU, a family of kernels, a number format, and what its rows are for."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from ksim.calibration.measurements import Measurements
from ksim.oracles.efficiency.physics import Array

#: How many of the worst shapes a cell names.
WORST = 5


@frozen(eq=False)
class Judged:
    """Rows of one GPU, family and format with what was predicted for them; `how` tells whether they had been seen.

    `low` and `high` are the ends of the 90 % intervals, nan where there are none.
    """

    gpu: str
    family: str
    rows: Measurements
    how: str
    seconds: Array
    low: Array
    high: Array

    @property
    def errors(self) -> Array:
        """Predicted over measured, less one."""
        return np.asarray(self.seconds / self.rows.seconds - 1)


@frozen
class Cell:
    """Errors in per cent: `mape` their mean size, then quantiles of it, `bias` their mean; `coverage` of intervals."""

    gpu: str
    family: str
    dtype: str
    tag: str
    how: str
    points: int
    mape: float
    median: float
    p90: float
    p99: float
    bias: float
    coverage: float | None
    worst: tuple[str, ...]


def cells(judged: Iterable[Judged]) -> Iterator[Cell]:
    """One for each tag of each."""
    for each in judged:
        for tag in np.unique(each.rows.tags):
            yield _cell(each, str(tag), each.rows.tags == tag)


def _cell(judged: Judged, tag: str, of: np.ndarray[Any, np.dtype[np.bool_]]) -> Cell:
    errors, rows = 100 * judged.errors[of], judged.rows.take(of)
    size = np.abs(errors)
    inside = (judged.low[of] <= rows.seconds) & (rows.seconds <= judged.high[of])
    worst = [f"{rows.describe(int(i))}: {1e6 * rows.seconds[i]:.4g} us, {errors[i]:+.0f} %"
             for i in np.argsort(-size)[:WORST]]
    median, p90, p99 = np.percentile(size, (50, 90, 99)).tolist()
    return Cell(judged.gpu, judged.family, judged.rows.dtype, tag, judged.how, len(rows), float(size.mean()), median,
                p90, p99, float(errors.mean()), None if np.isnan(judged.low[of]).any() else 100 * float(inside.mean()),
                tuple(worst))


def families(judged: Sequence[Judged]) -> dict[str, dict[str, float]]:
    """Each family's errors in per cent: of all rows of a GPU, and of GPUs the mean; formats but BF16 stand apart."""
    names = dict.fromkeys(name_of(each) for each in judged)
    found = {}
    for name in names:
        by_gpu: dict[str, list[Array]] = {}
        for each in judged:
            if name_of(each) == name:
                by_gpu.setdefault(each.gpu, []).append(100 * np.abs(each.errors))
        sizes = [np.concatenate(parts) for parts in by_gpu.values()]
        found[name] = {"mape": float(np.mean([size.mean() for size in sizes])),
                       "median": float(np.mean([np.median(size) for size in sizes])),
                       "points": sum(len(size) for size in sizes)}
    return found


def name_of(judged: Judged) -> str:
    return judged.family if judged.rows.dtype == "bf16" else f"{judged.family}/{judged.rows.dtype}"


def coverage(judged: Sequence[Judged]) -> float | None:
    """The share in per cent of all rows that lie in their intervals; None where there are none."""
    known = [each for each in judged if not np.isnan(each.low).any()]
    if not known:
        return None
    return 100 * float(np.mean(np.concatenate([
        (each.low <= each.rows.seconds) & (each.rows.seconds <= each.high) for each in known])))
