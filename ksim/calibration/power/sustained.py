"""Kernels that ran back to back, with the energy that the board counted: one row of a sweep's ``kernels_energy`` each.

Columns beside the shape: `energy_mj_per_kernel`, `latency_us` meanwhile, `graph_us` of a few milliseconds just before,
and the `sm_mhz` seen at the end.  Attention has `batch` equal sequences of `ql` new tokens, and `kl` in the cache.
Rows stand in the order in which they were measured, so each began at the clock at which the one before it ended.
"""

from pathlib import Path

import numpy as np
from attrs import frozen

from ksim.calibration.kernels import kernels
from ksim.calibration.measurements import FAMILIES, Batches, Floats, Points
from ksim.calibration.reading.frames import Frame, column_names, load
from ksim.compute.kernels import Kernel
from ksim.cost.energy import Actions, actions
from ksim.foundation.errors import DataError
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu

NEEDED = ("family", "watts", "energy_mj_per_kernel", "latency_us", "graph_us", "sm_mhz")
_LEFT = "left_mhz"


@frozen
class Sustained:
    """One kernel, or the few of one launch: `seconds` of a launch under load, and joules at the SM `clock` (Hz).

    `shape` and number format tell it from others of its `family`.  It took `graph` seconds just before the load, when
    the GPU had not yet recovered from the row before, which had left it at the clock `left` (Hz).
    """

    family: str
    dtype: str
    shape: str
    kernels: tuple[Kernel, ...]
    seconds: float
    graph: float
    joules: float
    clock: float
    left: float

    @property
    def watts(self) -> float:
        return self.joules / self.seconds

    def actions(self, gpu: Gpu, seconds: float | None = None) -> list[Actions]:
        """What it does on *gpu* where it takes *seconds*, by default those under load."""
        each = (seconds or self.seconds) / len(self.kernels)
        return [actions(kernel, each, gpu) for kernel in self.kernels]


@frozen
class Recorded:
    """The rows of a file, and the watts that the GPU drew with nothing to do."""

    rows: tuple[Sustained, ...]
    idle: float


def recognises(path: Path) -> bool:
    """Whether *path* is a table of sustained kernels."""
    return path.suffix in (".parquet", ".csv") and "energy_mj_per_kernel" in column_names(path)


def read(path: Path) -> Recorded:
    """Read the file at *path*; raises DataError for one that lacks columns, or has a row without a figure."""
    frame = load(path)
    if missing := [name for name in NEEDED if name not in frame]:
        raise DataError(str(path), f"has no column {' and no '.join(map(repr, missing))}; a file of sustained kernels"
                                   f" has {', '.join(NEEDED)} and the columns of their shapes")
    idle = frame.where("family", "idle").numbers("watts")
    if len(idle) != 1 or not idle[0] > 0:
        raise DataError(str(path), "needs one row of family 'idle' with the watts of a GPU that has nothing to do")
    frame = frame.having(_LEFT, _left(frame))
    rows = [row for names, part in frame.groups("family", "dtype") if names["family"] != "idle"
            for row in _rows(names["family"], names["dtype"] or "bf16", part)]
    if not rows:
        raise DataError(str(path), "has no row but that of the idle GPU")
    return Recorded(tuple(rows), float(idle[0]))


def _left(frame: Frame) -> Floats:
    """The clock (MHz) of the row before each; the boost clock, or beyond, where a GPU had nothing to do."""
    clocks = np.concatenate(([np.inf], frame.numbers("sm_mhz")[:-1]))
    return np.where(clocks > 0, clocks, np.inf)


def _rows(family: str, dtype: str, part: Frame) -> list[Sustained]:
    points = _points(family, dtype, part)
    figures = {name: part.numbers(name) for name in (*NEEDED[2:], _LEFT)}
    for name, column in figures.items():
        if (bad := np.flatnonzero(~(column > 0))).size:
            raise DataError(str(part.path), f"row {part.places[bad[0]]}: {name} is {column[bad[0]]}, and must be"
                                            f" positive")
    return [_row(points, place, {name: float(column[place]) for name, column in figures.items()})
            for place in range(len(part))]


def _row(points: Points, place: int, figures: dict[str, float]) -> Sustained:
    launched = tuple(kernels(points, place))
    return Sustained(
        points.family, points.dtype, points.describe(place), launched, 1e-6 * figures["latency_us"],
        1e-6 * figures["graph_us"], 1e-3 * figures["energy_mj_per_kernel"], 1e6 * figures["sm_mhz"],
        1e6 * figures[_LEFT])


def _points(family: str, dtype: str, part: Frame) -> Points:
    if family not in FAMILIES:
        raise DataError(str(part.path), f"no family of kernels is called {family!r} ({', '.join(FAMILIES)})")
    known = FAMILIES[family]
    if missing := [name for name in (*known.needs, *(("batch", "ql", "kl") if known.batched else ()))
                   if name not in part]:
        raise DataError(str(part.path), f"has no column {missing[0]!r}, which {family} needs")
    batches = Batches.uniform(part.whole("batch"), part.whole("ql"), part.whole("kl")) if known.batched else None
    return Points(family=family, dtype=dtype, columns={name: part.whole(name) for name in known.needs},
                  tags=np.full(len(part), ""), batches=batches)


def equivalent(done: Actions, gpu: Gpu) -> float:
    """FLOP in BF16 that take as long at the peak: what a FLOP costs is taken to go with that."""
    return done.flops * gpu.flops[DType.BF16] / gpu.flops[done.dtype]


def terms(done: list[Actions], gpu: Gpu) -> Floats:
    """How often `fitting.TERMS` happen; FP32, which ordinary cores compute, is none of them."""
    return np.array([
        sum(equivalent(each, gpu) for each in done if each.dtype is not DType.FP32),
        sum(each.hbm for each in done), sum(each.written for each in done), sum(each.l2 for each in done),
        sum(each.busy for each in done)])
