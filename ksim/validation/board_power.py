"""The power model compared with public tables of kernels that state the mean power of the board."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from attrs import asdict, frozen

from ksim.calibration.batches import Floats
from ksim.calibration.power import boards
from ksim.calibration.power.boards import Readings, metered_watts, model_watts
from ksim.foundation.errors import DataError
from ksim.scenario.hardware import gpu_of

#: A prediction within so many per cent meets the goal.
CLOSE = 10.0


@frozen
class PowerErrors:
    """Relative errors of some rows in per cent.

    `mape` and `median` are the mean and the median absolute error, `bias` is the median signed one, and `within` the
    share of rows with an error of at most `CLOSE`.
    """

    mape: float
    median: float
    bias: float
    within: float

    @classmethod
    def of(cls, signed: Floats) -> "PowerErrors":
        size = np.abs(signed)
        return cls(float(size.mean()), float(np.median(size)), float(np.median(signed)),
                   100.0 * float(np.mean(size <= CLOSE)))


@frozen
class PowerCell:
    """Errors on rows held back: of the power model, and of a meter whose readings are fitted to the other rows."""

    gpu: str
    op: str
    dtype: str
    rows: int
    drawn: PowerErrors
    observed: PowerErrors


@frozen
class BoardReport:
    """PowerErrors on all rows, by GPU, and by GPU, kind of kernel and number format."""

    whole: PowerCell
    gpus: tuple[PowerCell, ...]
    cells: tuple[PowerCell, ...]


@frozen(eq=False)
class _Predicted:
    gpu: str
    op: str
    dtype: str
    drawn: Floats
    observed: Floats


def compare(path: Path, limit: int = 0) -> BoardReport:
    """Predict the held-back rows of the table at *path*, or of *limit* rows of it; raises DataError if it has none."""
    parts = [part for part in map(_predicted, boards.read(path, limit)) if len(part.drawn)]
    if not parts:
        raise DataError(str(path), f"has no row to compare with: one shape in {boards.HELD_OUT} is held back, and none"
                                   f" of these few is")
    return BoardReport(_cell(parts, "all", "", ""), tuple(_grouped(parts, lambda part: (part.gpu, "", ""))),
                       tuple(_grouped(parts, lambda part: (part.gpu, part.op, part.dtype))))


def _predicted(readings: Readings) -> _Predicted:
    power, held_out = gpu_of(readings.gpu).power, readings.held_out
    drawn, observed = (100.0 * (watts(readings, power)[held_out] / readings.watts[held_out] - 1.0)
                       for watts in (model_watts, metered_watts))
    return _Predicted(readings.gpu, readings.op, readings.dtype, drawn, observed)


def _grouped(parts: list[_Predicted], name: Callable[[_Predicted], tuple[str, str, str]]) -> Iterator[PowerCell]:
    for group in sorted({name(part) for part in parts}):
        yield _cell([part for part in parts if name(part) == group], *group)


def _cell(parts: list[_Predicted], gpu: str, op: str, dtype: str) -> PowerCell:
    own = np.concatenate([part.drawn for part in parts])
    return PowerCell(gpu, op, dtype, len(own), PowerErrors.of(own),
                     PowerErrors.of(np.concatenate([part.observed for part in parts])))


def as_table(report: BoardReport) -> dict[str, Any]:
    """The report for a JSON file; docs/energy-accuracy.md explains its keys."""
    whole = report.whole
    return {"table_mape": whole.drawn.mape, "table_median_ape": whole.drawn.median,
            "table_observed_mape": whole.observed.mape, "table_observed_median_ape": whole.observed.median,
            "table_rows": whole.rows, "table_by_gpu": {cell.gpu: asdict(cell) for cell in report.gpus},
            "table_cells": [asdict(cell) for cell in report.cells]}
