"""Errors of predictions, cell by cell: by GPU, family of kernels, number format, and purpose of the rows."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from ksim.calibration.measurements import Measurements
from ksim.oracles.efficiency.gemm import Array

#: How many of its worst shapes a cell names.
WORST = 5


@frozen(eq=False)
class PredictedRows:
    """Measured rows of one GPU, family and format, and the seconds predicted for them.

    `how` says whether the prediction had seen these rows.  `low` and `high` are the ends of the 90 % intervals; nan
    where there are none.
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
        """Predicted over measured seconds, less one."""
        return np.asarray(self.seconds / self.rows.seconds - 1)


@frozen
class Cell:
    """Errors in per cent of the rows with one tag.

    `mape` is the mean absolute error; `median`, `p90` and `p99` are its quantiles; `bias` is the mean signed error.
    `coverage` is the share of rows inside their 90 % intervals.
    """

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


def cells(predicted: Iterable[PredictedRows]) -> Iterator[Cell]:
    """A cell for each tag of each table of rows."""
    for part in predicted:
        for tag in np.unique(part.rows.tags):
            yield _cell(part, str(tag), part.rows.tags == tag)


def _cell(predicted: PredictedRows, tag: str, of: np.ndarray[Any, np.dtype[np.bool_]]) -> Cell:
    errors, rows = 100 * predicted.errors[of], predicted.rows.take(of)
    size = np.abs(errors)
    inside = (predicted.low[of] <= rows.seconds) & (rows.seconds <= predicted.high[of])
    worst = [f"{rows.describe(int(i))}: {1e6 * rows.seconds[i]:.4g} us, {errors[i]:+.0f} %"
             for i in np.argsort(-size)[:WORST]]
    median, p90, p99 = np.percentile(size, (50, 90, 99)).tolist()
    covered = None if np.isnan(predicted.low[of]).any() else 100 * float(inside.mean())
    return Cell(
        gpu=predicted.gpu, family=predicted.family, dtype=predicted.rows.dtype, tag=tag, how=predicted.how,
        points=len(rows), mape=float(size.mean()), median=median, p90=p90, p99=p99, bias=float(errors.mean()),
        coverage=covered, worst=tuple(worst))


def families(predicted: Sequence[PredictedRows]) -> dict[str, dict[str, float]]:
    """The errors of each family in per cent, as means over GPUs; formats other than BF16 are families of their own."""
    names = dict.fromkeys(name_of(part) for part in predicted)
    errors = {}
    for name in names:
        by_gpu: dict[str, list[Array]] = {}
        for part in predicted:
            if name_of(part) == name:
                by_gpu.setdefault(part.gpu, []).append(100 * np.abs(part.errors))
        sizes = [np.concatenate(parts) for parts in by_gpu.values()]
        errors[name] = {"mape": float(np.mean([size.mean() for size in sizes])),
                        "median": float(np.mean([np.median(size) for size in sizes])),
                        "points": sum(len(size) for size in sizes)}
    return errors


def name_of(predicted: PredictedRows) -> str:
    """The family of the rows, with their format unless that is BF16."""
    return predicted.family if predicted.rows.dtype == "bf16" else f"{predicted.family}/{predicted.rows.dtype}"


def coverage(predicted: Sequence[PredictedRows]) -> float | None:
    """The share in per cent of rows that lie inside their intervals; None where there are no intervals."""
    known = [part for part in predicted if not np.isnan(part.low).any()]
    if not known:
        return None
    return 100 * float(np.mean(np.concatenate([
        (part.low <= part.rows.seconds) & (part.rows.seconds <= part.high) for part in known])))
