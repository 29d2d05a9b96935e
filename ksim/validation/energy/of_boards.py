"""The power model against public tables of kernels with the mean power of the board."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from attrs import asdict, frozen

from ksim.calibration.batches import Floats
from ksim.calibration.power import boards
from ksim.calibration.power.boards import Readings
from ksim.calibration.power.meter import metered_watts, model_watts
from ksim.foundation.errors import DataError
from ksim.simulation.lookup import gpu_of

#: Per cent within which a prediction is as good as the goal asks for.
CLOSE = 10.0


@frozen
class Errors:
    """Relative errors of some rows, in per cent: mean and median absolute ones, median signed one, share `CLOSE`."""

    mape: float
    median: float
    bias: float
    within: float

    @classmethod
    def of(cls, signed: Floats) -> "Errors":
        size = np.abs(signed)
        return cls(float(size.mean()), float(np.median(size)), float(np.median(signed)),
                   100.0 * float(np.mean(size <= CLOSE)))


@frozen
class Cell:
    """Held-back rows: as the power model has them, and as a meter would that is told by the other rows."""

    gpu: str
    op: str
    dtype: str
    rows: int
    drawn: Errors
    observed: Errors


@frozen
class Verdict:
    """Of all rows, of each GPU, and of each kind of kernel and number format on each."""

    whole: Cell
    gpus: tuple[Cell, ...]
    cells: tuple[Cell, ...]


@frozen(eq=False)
class _Judged:
    gpu: str
    op: str
    dtype: str
    drawn: Floats
    observed: Floats


def judge(path: Path, limit: int = 0) -> Verdict:
    """Judge the rows held back of the table at *path*, or of *limit* rows of it; raises DataError if there are none."""
    judged = [each for each in map(_judged, boards.read(path, limit)) if len(each.drawn)]
    if not judged:
        raise DataError(str(path), f"has no row to judge: one shape in {boards.HELD_OUT} is held back, and none of"
                                   f" these few is")
    return Verdict(_cell(judged, "all", "", ""), tuple(_grouped(judged, lambda each: (each.gpu, "", ""))),
                   tuple(_grouped(judged, lambda each: (each.gpu, each.op, each.dtype))))


def _judged(readings: Readings) -> _Judged:
    power, held_out = gpu_of(readings.gpu).power, readings.held_out
    drawn, observed = (100.0 * (watts(readings, power)[held_out] / readings.watts[held_out] - 1.0)
                       for watts in (model_watts, metered_watts))
    return _Judged(readings.gpu, readings.op, readings.dtype, drawn, observed)


def _grouped(judged: list[_Judged], name: Callable[[_Judged], tuple[str, str, str]]) -> Iterator[Cell]:
    for each in sorted({name(each) for each in judged}):
        yield _cell([one for one in judged if name(one) == each], *each)


def _cell(judged: list[_Judged], gpu: str, op: str, dtype: str) -> Cell:
    own = np.concatenate([each.drawn for each in judged])
    return Cell(gpu, op, dtype, len(own), Errors.of(own), Errors.of(np.concatenate([each.observed for each in judged])))


def as_table(verdict: Verdict) -> dict[str, Any]:
    """The verdict for a JSON file; docs/energy-accuracy.md says what its keys are."""
    whole = verdict.whole
    return {"table_mape": whole.drawn.mape, "table_median_ape": whole.drawn.median,
            "table_observed_mape": whole.observed.mape, "table_observed_median_ape": whole.observed.median,
            "table_rows": whole.rows, "table_by_gpu": {cell.gpu: asdict(cell) for cell in verdict.gpus},
            "table_cells": [asdict(cell) for cell in verdict.cells]}
