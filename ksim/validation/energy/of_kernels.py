"""The power model against kernels that ran back to back: each by a fit without its shape, and without its family."""

from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, frozen

from ksim.calibration.power import sustained
from ksim.calibration.power.prediction import Prediction, leave_group_out, predict
from ksim.calibration.power.sustained import SustainedKernel
from ksim.foundation.errors import DataError
from ksim.simulation.lookup import gpu_of

#: What is said of a kernel, by its name in a JSON file.
ERRORS = {"power": "power_error", "energy": "energy_error", "time": "time_error"}


@frozen
class Verdict:
    """Rows foretold without their own shape and without their own family; `recovered` as if graphs were timed cool."""

    shapes: tuple[Prediction, ...]
    families: tuple[Prediction, ...]
    recovered_shapes: tuple[Prediction, ...]
    recovered_families: tuple[Prediction, ...]


def judge(path: Path, gpu: str) -> Verdict:
    """Judge the kernels in the file at *path*; raises DataError where there are too few to leave some out."""
    recorded = sustained.read(path)
    if len({_family(row) for row in recorded.rows}) < 2:
        raise DataError(str(path), "needs kernels of two families or more: each is foretold by the others")
    known = gpu_of(gpu)
    known = evolve(known, power=evolve(known.power, idle=recorded.idle))
    ways = [leave_group_out(recorded.rows, known, group) for group in (_shape, _family)]
    return Verdict(*(tuple(predict(row, teacher, recovered) for row, teacher in zip(recorded.rows, way, strict=True))
                     for recovered in (False, True) for way in ways))


def _shape(row: SustainedKernel) -> tuple[str, str, str]:
    return row.family, row.dtype, row.shape


def _family(row: SustainedKernel) -> str:
    return row.family


def mape(found: tuple[Prediction, ...], error: str) -> float:
    """The mean absolute error, per cent, of one of `ERRORS`."""
    return float(np.mean([abs(getattr(each, ERRORS[error])) for each in found]))


def as_table(verdict: Verdict) -> dict[str, Any]:
    """The verdict for a JSON file; docs/energy-accuracy.md says what its keys are."""
    ways = {"": (verdict.shapes, verdict.families),
            "_recovered": (verdict.recovered_shapes, verdict.recovered_families)}
    table: dict[str, Any] = {"kernels_shape_mape": mape(verdict.shapes, "power"),
                             "kernels_family_mape": mape(verdict.families, "power")}
    for suffix, (shapes, families) in ways.items():
        table |= {f"kernels_time{suffix}_mape": mape(shapes, "time"),
                  f"kernels_time_family{suffix}_mape": mape(families, "time"),
                  f"kernels_energy_shape{suffix}_mape": mape(shapes, "energy"),
                  f"kernels_energy_family{suffix}_mape": mape(families, "energy")}
    return table | {"kernels": [_row(*pair) for pair in zip(verdict.shapes, verdict.families, strict=True)]}


def _row(shape: Prediction, family: Prediction) -> dict[str, Any]:
    row = shape.row
    return {"family": row.family, "dtype": row.dtype, "shape": row.shape, "watts": row.watts,
            "joules": row.joules, "seconds": row.seconds,
            **{f"{name}_{way}_error": getattr(found, error) for name, error in ERRORS.items()
               for way, found in (("shape", shape), ("family", family))}}
