"""How good predicted energy is: compared with sustained kernels, serving runs and public tables of power."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, field, frozen
from attrs.validators import ge

from ksim.calibration.power import boards, prediction
from ksim.calibration.power.prediction import Prediction, SustainedKernel, leave_group_out, predict
from ksim.foundation.errors import DataError
from ksim.scenario.hardware import gpu_of
from ksim.validation import board_power
from ksim.validation.board_power import BoardReport
from ksim.validation.serving import comparison
from ksim.validation.serving.comparison import ServingReport
from ksim.validation.serving.recordings import ServerSpec

__all__ = ["EnergyReport", "Question", "SustainedReport", "as_table", "mape", "validate"]

#: The errors of a kernel, by their names in a JSON file.
ERRORS = {"power": "power_error", "energy": "energy_error", "time": "time_error"}


@frozen
class Question:
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


def validate(question: Question, say: Callable[[str], None] = lambda _: None) -> EnergyReport:
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
                        board_power.compare(public, question.limit) if public else None)


def _only(path: Path, files: list[Path], recognises: Callable[[Path], bool]) -> Path | None:
    """The file that is recognised; raises DataError where there are several."""
    tables = [file for file in files if recognises(file)]
    if len(tables) > 1:
        raise DataError(str(path), f"has more than one such table: {', '.join(file.name for file in tables)}; name one")
    return tables[0] if tables else None


def as_table(report: EnergyReport) -> dict[str, Any]:
    """The report for a JSON file, without what was not compared; docs/energy-accuracy.md explains its keys."""
    table: dict[str, Any] = {}
    if report.kernels:
        table |= _sustained_table(report.kernels)
    if report.runs:
        table |= _runs_table(report.runs)
    if report.table:
        table |= board_power.as_table(report.table)
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
