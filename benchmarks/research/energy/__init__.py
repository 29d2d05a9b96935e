"""How good predicted energy is: compared with sustained kernels, serving runs and public tables of power.

The power model compared with public tables of kernels that state the mean power of the board.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from attrs import asdict, evolve, field, frozen
from attrs.validators import ge
from numpy.typing import NDArray

from benchmarks.research.energy import boards, prediction
from benchmarks.research.energy.boards import Readings, metered_watts, model_watts
from benchmarks.research.energy.prediction import Prediction, SustainedKernel, leave_group_out, predict
from benchmarks.research.serving import comparison
from benchmarks.research.serving.comparison import ServingReport
from benchmarks.research.serving.recordings import ServerSpec
from ksim.foundation.errors import DataError
from ksim.scenario.hardware import gpu_of

__all__ = ["ERRORS", "BoardReport", "EnergyQuestion", "EnergyReport", "PowerCell", "PowerErrors", "SustainedReport",
           "as_table", "mape", "validate"]


Floats = NDArray[np.float64]
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


def board_table(report: BoardReport) -> dict[str, Any]:
    """The report for a JSON file; docs/evidence/energy-accuracy.md explains its keys."""
    whole = report.whole
    return {"table_mape": whole.drawn.mape, "table_median_ape": whole.drawn.median,
            "table_observed_mape": whole.observed.mape, "table_observed_median_ape": whole.observed.median,
            "table_rows": whole.rows, "table_by_gpu": {cell.gpu: asdict(cell) for cell in report.gpus},
            "table_cells": [asdict(cell) for cell in report.cells]}


#: The errors of a kernel, by their names in a JSON file.
ERRORS = {"power": "power_error", "energy": "energy_error", "time": "time_error"}


@frozen
class EnergyQuestion:
    """What to compare with: the file or folder at `path`.

    `gpu` is the GPU of sustained kernels and serving runs, whose files do not name it.  `limit` takes only so many rows
    of a public table, drawn by the hashes of their shapes; 0 takes all.
    """

    path: Path
    gpu: str = "h200"
    limit: int = field(default=0, validator=ge(0))


@frozen
class SustainedReport:
    """Predictions of sustained kernels, by fits without their own shape and without their own family.

    The `recovered` ones take the times of captured graphs for those of a cool GPU.
    """

    shapes: tuple[Prediction, ...]
    families: tuple[Prediction, ...]
    recovered_shapes: tuple[Prediction, ...]
    recovered_families: tuple[Prediction, ...]


def sustained_report(path: Path, gpu: str) -> SustainedReport:
    """Predict the kernels in the file at *path*; raises DataError where there are too few to hold some back."""
    recorded = prediction.read(path)
    if len({_family(row) for row in recorded.rows}) < 2:
        raise DataError(str(path), "needs kernels of two families or more: each is predicted from the others")
    target = gpu_of(gpu)
    target = evolve(target, power=evolve(target.power, idle=recorded.idle))
    ways = [leave_group_out(recorded.rows, target, group) for group in (_shape, _family)]
    return SustainedReport(*(
        tuple(predict(row, teacher, recovered) for row, teacher in zip(recorded.rows, way, strict=True))
        for recovered in (False, True) for way in ways))


def _shape(row: SustainedKernel) -> tuple[str, str, str]:
    return row.family, row.dtype, row.shape


def _family(row: SustainedKernel) -> str:
    return row.family


def mape(kernels: tuple[Prediction, ...], error: str) -> float:
    """The mean absolute error in per cent of one of `ERRORS`."""
    return float(np.mean([abs(getattr(kernel, ERRORS[error])) for kernel in kernels]))


@frozen
class EnergyReport:
    """Comparisons with sustained kernels, serving runs and a public table; None for what was not there."""

    kernels: SustainedReport | None = None
    runs: ServingReport | None = None
    table: BoardReport | None = None


def validate(question: EnergyQuestion, say: Callable[[str], None] = lambda _: None) -> EnergyReport:
    """Compare power and energy with the measurements that *question* names.

    Raises KsimError for files that cannot be used, and where there are no measurements.
    """
    path = question.path
    if not path.exists():
        raise DataError(str(path), "does not exist")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    swept, public = _only(path, files, prediction.recognises), _only(path, files, boards.recognises)
    played = any(file.match("engine_*.json") for file in files)
    if not (swept or public or played):
        raise DataError(str(path), "has no measurements of energy; expected a table of sustained kernels (a column"
                                   " energy_mj_per_kernel), a table of kernels with the power of boards (power_w), or"
                                   " serving runs (engine_*.json)")
    say("predicting kernels")
    return EnergyReport(sustained_report(swept, question.gpu) if swept else None,
                        comparison.serving(path, ServerSpec(gpu=question.gpu), say) if played else None,
                        compare(public, question.limit) if public else None)


def _only(path: Path, files: list[Path], recognises: Callable[[Path], bool]) -> Path | None:
    """The file that is recognised; raises DataError where there are several."""
    tables = [file for file in files if recognises(file)]
    if len(tables) > 1:
        raise DataError(str(path), f"has more than one such table: {', '.join(file.name for file in tables)}; name one")
    return tables[0] if tables else None


def as_table(report: EnergyReport) -> dict[str, Any]:
    """The report for a JSON file, without what was not compared; docs/evidence/energy-accuracy.md explains its keys."""
    table: dict[str, Any] = {}
    if report.kernels:
        table |= _sustained_table(report.kernels)
    if report.runs:
        table |= _runs_table(report.runs)
    if report.table:
        table |= board_table(report.table)
    return table


def _runs_table(report: ServingReport) -> dict[str, Any]:
    metered = report.metered
    return {"serving_median_ape": report.median_ape("joules") if metered else None,
            "serving": [{"recording": run.recording, "run": run.run, "joules": run.measured.joules,
                         "predicted_joules": run.predicted.joules, "error": run.errors.joules} for run in metered]}


def _sustained_table(report: SustainedReport) -> dict[str, Any]:
    ways = {"": (report.shapes, report.families),
            "_recovered": (report.recovered_shapes, report.recovered_families)}
    table: dict[str, Any] = {"kernels_shape_mape": mape(report.shapes, "power"),
                             "kernels_family_mape": mape(report.families, "power")}
    for suffix, (shapes, families) in ways.items():
        table |= {f"kernels_time{suffix}_mape": mape(shapes, "time"),
                  f"kernels_time_family{suffix}_mape": mape(families, "time"),
                  f"kernels_energy_shape{suffix}_mape": mape(shapes, "energy"),
                  f"kernels_energy_family{suffix}_mape": mape(families, "energy")}
    return table | {"kernels": [_kernel_row(*pair) for pair in zip(report.shapes, report.families, strict=True)]}


def _kernel_row(shape: Prediction, family: Prediction) -> dict[str, Any]:
    row = shape.row
    return {"family": row.family, "dtype": row.dtype, "shape": row.shape, "watts": row.watts,
            "joules": row.joules, "seconds": row.seconds,
            **{f"{name}_{way}_error": getattr(kernel, error) for name, error in ERRORS.items()
               for way, kernel in (("shape", shape), ("family", family))}}
