"""The power model fitted to kernels that ran back to back, and its predictions for kernels that were left out.

The joules of actions are fitted by non-negative least squares, since energy is linear in them.  What SMs and caches did
at a lower clock is scaled to the boost clock by the square of the voltage.  A GPU at its power limit draws the limit.

Kernels that ran back to back, with the energy that the board counted: rows of a sweep's ``kernels_energy``.

Columns beside the shape: `energy_mj_per_kernel`, `latency_us` under load, `graph_us` of a few milliseconds just before,
and the `sm_mhz` seen at the end.  Attention has `batch` equal sequences of `ql` new tokens, and `kl` in the cache.
Rows are in the order in which they were measured, so each began at the clock at which the one before it ended.
"""

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
from attrs import astuple, evolve, frozen

from ksim.calibration.batches import Floats, PointBatches
from ksim.calibration.kernels import kernels
from ksim.calibration.measurements import FAMILIES, Points
from ksim.calibration.reading.frames import Frame, column_names, load
from ksim.calibration.regression import library
from ksim.compute.kernels import Kernel
from ksim.cost.energy import Actions, Clock, Joules, actions, joules
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.foundation.errors import DataError
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu, Power

NEEDED = ("family", "watts", "energy_mj_per_kernel", "latency_us", "graph_us", "sm_mhz")
_LEFT = "left_mhz"
#: The terms of the power model: joules per FLOP in BF16, and fields of `Power`.  `CORE` and `BUSY` scale with the SMs'
#: voltage.
TERMS = ("bf16", "hbm", "write", "l2", "busy")
CORE, BUSY = np.array([True, False, False, True, False]), np.array([False, False, False, False, True])


@frozen
class SustainedKernel:
    """One kernel, or the few of one launch: `seconds` per launch under load, and joules at the SM `clock` (Hz).

    `dtype` and `shape` tell it from others of its `family`.  A launch took `graph`
    seconds just before the load, when the GPU had not yet recovered from the row
    before, which left it at the clock `left` (Hz).
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
        """Count what it does on *gpu* in *seconds*, by default those under load."""
        per_kernel = (seconds or self.seconds) / len(self.kernels)
        return [actions(kernel, per_kernel, gpu) for kernel in self.kernels]


@frozen
class SustainedSweep:
    """The rows of a file, and the power of the idle GPU, in watts."""

    rows: tuple[SustainedKernel, ...]
    idle: float


def recognises(path: Path) -> bool:
    """Return whether *path* is a table of sustained kernels."""
    return path.suffix in (".parquet", ".csv") and "energy_mj_per_kernel" in column_names(path)


def read(path: Path) -> SustainedSweep:
    """Read the file at *path*; raise DataError if it lacks columns, or if a figure is missing."""
    frame = load(path)
    if missing := [name for name in NEEDED if name not in frame]:
        raise DataError(str(path), f"has no column {' and no '.join(map(repr, missing))}; a file of sustained kernels"
                                   f" has {', '.join(NEEDED)} and the columns of their shapes")
    idle = frame.where("family", "idle").numbers("watts")
    if len(idle) != 1 or not idle[0] > 0:
        raise DataError(str(path), "needs one row of family 'idle' with the watts of the idle GPU")
    frame = frame.having(_LEFT, _left(frame))
    rows = [row for names, part in frame.groups("family", "dtype") if names["family"] != "idle"
            for row in _rows(names["family"], names["dtype"] or "bf16", part)]
    if not rows:
        raise DataError(str(path), "has no row but that of the idle GPU")
    return SustainedSweep(tuple(rows), float(idle[0]))


def _left(frame: Frame) -> Floats:
    """Return the clock (MHz) of the row before each; infinite after an idle GPU, which is at its boost clock."""
    clocks = np.concatenate(([np.inf], frame.numbers("sm_mhz")[:-1]))
    return np.where(clocks > 0, clocks, np.inf)


def _rows(family: str, dtype: str, part: Frame) -> list[SustainedKernel]:
    points = _points(family, dtype, part)
    figures = {name: part.numbers(name) for name in (*NEEDED[2:], _LEFT)}
    for name, column in figures.items():
        if (bad := np.flatnonzero(~(column > 0))).size:
            raise DataError(str(part.path), f"row {part.places[bad[0]]}: {name} is {column[bad[0]]}, and must be"
                                            f" positive")
    return [_row(points, place, {name: float(column[place]) for name, column in figures.items()})
            for place in range(len(part))]


def _row(points: Points, place: int, figures: dict[str, float]) -> SustainedKernel:
    launched = tuple(kernels(points, place))
    return SustainedKernel(
        family=points.family, dtype=points.dtype, shape=points.describe(place), kernels=launched,
        seconds=1e-6 * figures["latency_us"], graph=1e-6 * figures["graph_us"],
        joules=1e-3 * figures["energy_mj_per_kernel"], clock=1e6 * figures["sm_mhz"], left=1e6 * figures[_LEFT])


def _points(family: str, dtype: str, part: Frame) -> Points:
    if family not in FAMILIES:
        raise DataError(str(part.path), f"no family of kernels is called {family!r} ({', '.join(FAMILIES)})")
    known = FAMILIES[family]
    if missing := [name for name in (*known.needs, *(("batch", "ql", "kl") if known.batched else ()))
                   if name not in part]:
        raise DataError(str(part.path), f"has no column {missing[0]!r}, which {family} needs")
    batches = PointBatches.uniform(part.whole("batch"), part.whole("ql"), part.whole("kl")) if known.batched else None
    return Points(family=family, dtype=dtype, columns={name: part.whole(name) for name in known.needs},
                  tags=np.full(len(part), ""), batches=batches)


def bf16_flops(counted: Actions, gpu: Gpu) -> float:
    """Return the FLOP in BF16 that take as long at the peak: joules per FLOP are taken to scale with that time."""
    return counted.flops * gpu.flops[DType.BF16] / gpu.flops[counted.dtype]


def terms(by_kernel: list[Actions], gpu: Gpu) -> Floats:
    """Count `TERMS`; FLOP in FP32, which ordinary cores compute, are in none of them."""
    return np.array([
        sum(bf16_flops(counted, gpu) for counted in by_kernel if counted.dtype is not DType.FP32),
        sum(counted.hbm for counted in by_kernel), sum(counted.written for counted in by_kernel),
        sum(counted.l2 for counted in by_kernel), sum(counted.busy for counted in by_kernel)])


def with_terms(gpu: Gpu, costs: Floats) -> Power:
    """Return *gpu*'s power with the joules of `TERMS`; those of other formats scale with their time at the peak."""
    bf16, hbm, write, l2, busy = map(float, costs)
    flop: dict[str | DType, float | str] = {
        dtype: cost if dtype is DType.FP32 else bf16 * gpu.flops[DType.BF16] / gpu.flops[dtype]
        for dtype, cost in gpu.power.flop.items()}
    return evolve(gpu.power, flop=flop, hbm=hbm, write=write, l2=l2, busy=busy)


def joules_of(power: Power) -> Floats:
    """Return the joules of `TERMS` in *power*, as `with_terms` takes them."""
    return np.array([power.flop[DType.BF16], power.hbm, power.write, power.l2, power.busy])


def fit(rows: Sequence[SustainedKernel], gpu: Gpu) -> Power:
    """Return *gpu*'s power with the joules fitted to *rows*; everything else is as it was.

    Raises MissingExtra without scipy.
    """
    power, clocks = gpu.power, gpu.power.clocks
    counts = np.array([terms(row.actions(gpu), gpu) for row in rows])
    known = np.array([row.joules - power.idle * row.seconds - _fp32(row, gpu) for row in rows])
    weights = 1.0 / np.array([row.joules for row in rows])
    if clocks is not None:
        seen_clocks = [min(row.clock, clocks.boost) for row in rows]
        counts[:, CORE] *= np.array([[clocks.saved(clock)] for clock in seen_clocks])
        counts[:, BUSY] *= np.array([[clocks.drawn(clock)] for clock in seen_clocks])
    fitted, _ = library("scipy.optimize").nnls(counts * weights[:, None], known * weights)
    return with_terms(gpu, fitted)


def _fp32(row: SustainedKernel, gpu: Gpu) -> float:
    cost = gpu.power.flop.get(DType.FP32, 0.0)
    return sum(cost * counted.flops for counted in row.actions(gpu) if counted.dtype is DType.FP32)


@frozen
class Prediction:
    """Predicted `seconds` and `joules` per launch of a row under sustained load.

    `watts` is the predicted power if the launch takes the row's measured time.
    """

    row: SustainedKernel
    watts: float
    seconds: float
    joules: float

    @property
    def power_error(self) -> float:
        """Signed error of the joules per launch at its measured time, in per cent."""
        return 100.0 * (self.watts / self.row.watts - 1.0)

    @property
    def energy_error(self) -> float:
        """Signed error of the joules per launch at its predicted time, in per cent."""
        return 100.0 * (self.joules / self.row.joules - 1.0)

    @property
    def time_error(self) -> float:
        """Signed error of the predicted time, in per cent."""
        return 100.0 * (self.seconds / self.row.seconds - 1.0)


def leave_group_out(rows: Sequence[SustainedKernel], gpu: Gpu,
                    group: Callable[[SustainedKernel], Hashable]) -> list[Gpu]:
    """Return, for each of *rows*, *gpu* with its power fitted to the rows of all other groups."""
    fitted = {name: evolve(gpu, power=fit([row for row in rows if group(row) != name], gpu))
              for name in dict.fromkeys(map(group, rows))}
    return [fitted[group(row)] for row in rows]


def predict(row: SustainedKernel, gpu: Gpu, recovered: bool = False) -> Prediction:
    """Predict *row* on *gpu*, at the clock that the power limit allows.

    With *recovered*, the time of its graph is taken to be that at the boost clock.
    """
    dynamic = _drawn(row, row.seconds, gpu)
    watts = min(gpu.power.limit, gpu.power.idle + dynamic.total / row.seconds)
    cool = row.graph if recovered else cooled(row, gpu)
    return Prediction(row, watts, *_sustained(row, cool, gpu))


def cooled(row: SustainedKernel, gpu: Gpu) -> float:
    """Return the seconds of *row*'s launch at the boost clock; its graph ran at the clock that the row before left.

    A graph is timed for a few milliseconds, and a GPU that was at its limit takes some 60 ms to recover.
    """
    clocks = gpu.power.clocks
    if clocks is None or bound(row, gpu) == "memory":
        return row.graph
    return row.graph / clocks.slowed(min(row.left, clocks.boost))


def bound(row: SustainedKernel, gpu: Gpu) -> str:
    """Return what limits *row* by the roofline: compute or memory."""
    compute = sum(kernel.work.flops / gpu.flops[kernel.work.dtype.element] for kernel in row.kernels)
    memory = sum(kernel.work.bytes / gpu.bandwidth for kernel in row.kernels)
    return "compute" if compute > memory else "memory"


def _drawn(row: SustainedKernel, seconds: float, gpu: Gpu) -> Joules:
    by_kernel = [astuple(joules(counted, gpu.power)) for counted in row.actions(gpu, seconds)]
    return Joules(*map(sum, zip(*by_kernel, strict=True)))


def _sustained(row: SustainedKernel, cool: float, gpu: Gpu) -> tuple[float, float]:
    """Return the seconds and joules of a launch of *cool* seconds, once the thermal credit is used up."""
    drawn = _drawn(row, cool, gpu)
    if gpu.power.clocks is None:
        return cool, drawn.total + gpu.power.idle * cool
    span = KernelCost.of("kernel", row.family, cool, joules=drawn.total, bound=bound(row, gpu),
                         sm_action_joules=drawn.core, sm_active_joules=drawn.busy)
    timeline = StepCost.of([PricedBlock.of((span,))])
    clock = Clock.tired(gpu.power, gpu.power.clocks)
    pace = clock.pace(timeline, 0.0)
    seconds = timeline.seconds_at(pace)
    return seconds, seconds * clock.watts(timeline, pace)
