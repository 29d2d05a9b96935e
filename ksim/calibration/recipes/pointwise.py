"""Memory-bound kernels: which rows are fitted, and which constants are free.

`ksim.oracles.efficiency.pointwise.Terms` are fitted family by family, with no model on top.  Only our H200 sweep has
measured them, except quantisation to FP8, which the public tables have of eight GPUs.

argmax was measured at three widths.  PyTorch splits only the widest over several blocks, and the cost of the split
does not follow from the other two.
"""

from collections.abc import Mapping

import numpy as np

from ksim.calibration.bounds import MOVES
from ksim.calibration.dataset import Dataset, Mask, RowRule, group_by
from ksim.calibration.fitting import Candidate, FitSpec
from ksim.calibration.measurements import Measurements
from ksim.calibration.regression import NOTHING, Free, Regressor
from ksim.specs.hardware import Gpu

__all__ = ["FIT_SPECS"]

#: Constants known from a family's source code, which are not fitted.
STRUCTURE: Mapping[str, Mapping[str, float]] = {
    "rms_norm": {"pass_bytes": 8192.0, "pass_rows": 256.0},
    "fused_add_rms_norm": {"pass_bytes": 16384.0, "pass_rows": 256.0, "footprint": 0.5},
    "silu_mul": {"pass_bytes": 49152.0},
    "rope": {"footprint": 0.5},
    "kv_write": {"widest": 4096.0},
    "argmax": {"split": 1.0, "thread_bytes": 4.0},
    "copy": {},
    "quantize": {"thread_bytes": 48.0, "pass_bytes": 49152.0},
}
_NORM = "start ramp kib passes l2 memory capacity sharpness"
FREE: Mapping[str, str] = {
    "rms_norm": _NORM, "fused_add_rms_norm": _NORM, "silu_mul": _NORM,
    "rope": "start ramp fixed kib wave l2 memory capacity sharpness",
    "kv_write": "start ramp fixed kib wave missing capacity sharpness",
    "argmax": "start fixed kib wave memory sharpness",
    "copy": "start l2 memory capacity sharpness",
    "quantize": "start ramp fixed kib passes wave l2 memory capacity sharpness",
}
RANGES = {
    "start": Free(0.3e-6, 1.5e-6, 6e-6), "ramp": Free(0.0, 0.02e-6, 0.1e-6), "fixed": Free(0.0, 400.0, 12000.0),
    "kib": Free(0.0, 40.0, 2000.0), "passes": Free(0.0, 600.0, 15000.0), "wave": Free(0.0, 100.0, 40000.0),
    "missing": Free(0.0, 100.0, 9000.0), "l2": Free(3.0, 21.0, 80.0), "memory": Free(0.2, 0.85, 0.97),
    "capacity": Free(0.4, 0.9, 2.5), "sharpness": Free(1.0, 4.0, 8.0),
}
RULES: Mapping[str, tuple[RowRule, ...]] = {
    "copy": (RowRule("a gigabyte: one row at 2.7 TB/s, two thirds of what a quarter of its size reaches",
                     lambda rows: rows["bytes"] >= 2**30),),
    "quantize": (RowRule("scales alone: a difference of two timings, down to zero and two thirds of it noise",
                         lambda rows: np.full(len(rows), rows.source.kernel.startswith("compute_scale"))),),
}
PLACE = ("log_traffic_over_l2", "log_row_bytes")


def dataset(rows: Measurements, gpu: Gpu) -> Dataset:
    """Make a dataset whose groups are widths: all columns but the tokens."""
    moves = MOVES[rows.family]
    count, read, written = (np.asarray(column, dtype=np.float64) for column in moves.of(rows))
    widths = [name for name in moves.columns if name != "t"]
    return Dataset.of(rows, gpu, {"rows": count, "read_bytes": read, "write_bytes": written},
                     groups=group_by(rows, *widths))


def grid(rows: Measurements) -> Mask:
    """Mark six numbers of tokens by six widths."""
    chosen: Mask = (np.isin(rows["t"], (1, 32, 256, 1024, 4096, 16384))
                    & np.isin(rows["h"], (128, 768, 2048, 5120, 10240, 65536)))
    return chosen


def _course(family: str) -> FitSpec:
    table = Candidate(Regressor("interpolation"), ("log_waves", "log_row_bytes", "log_traffic_over_l2"))
    return FitSpec.of(
        family, "pointwise", measures=family, dtype="fp8" if family == "quantize" else "bf16", dataset=dataset,
        free={name: RANGES[name] for name in FREE[family].split()}, held=STRUCTURE[family],
        rules=RULES.get(family, ()), grid=grid if family == "quantize" else None, place=PLACE,
        learned=Candidate(NOTHING), table=table, sweep=Candidate(NOTHING))


FIT_SPECS = tuple(map(_course, STRUCTURE))
