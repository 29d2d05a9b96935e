"""Joules of actions by non-negative least squares, and how well they foretell what was left out of the fit.

Energy is linear in what actions cost.  What SMs and caches did at a lower clock is taken back to the boost clock by the
square of the voltage; a GPU at its limit draws the limit.
"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from attrs import evolve, frozen
from scipy.optimize import nnls  # type: ignore[import-untyped]

from ksim.calibration.measurements import Floats
from ksim.calibration.power.sustained import Sustained, terms
from ksim.cost.clock import Clock
from ksim.cost.energy import Joules, joules
from ksim.flow.timeline import Lap, Pace, Span, Timeline
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu
from ksim.specs.power import Power

#: What is fitted: joules of a FLOP in BF16, and fields of `Power`; and which of that goes with the SMs' voltage.
TERMS = ("bf16", "hbm", "write", "l2", "busy")
CORE, BUSY = np.array([True, False, False, True, False]), np.array([False, False, False, False, True])


@frozen
class Foretold:
    """What a kernel left out of the fit takes under sustained load, and what it took."""

    row: Sustained
    watts: float
    seconds: float
    joules: float

    @property
    def power_error(self) -> float:
        """Of the power, per cent, signed."""
        return 100.0 * (self.watts / self.row.watts - 1.0)

    @property
    def energy_error(self) -> float:
        """Of the joules a launch, per cent, signed: of power and time together."""
        return 100.0 * (self.joules / self.row.joules - 1.0)

    @property
    def time_error(self) -> float:
        return 100.0 * (self.seconds / self.row.seconds - 1.0)


def fit(rows: Sequence[Sustained], gpu: Gpu) -> Power:
    """*gpu*'s power with the joules that *rows* teach; all else is as it is there."""
    power, clocks = gpu.power, gpu.power.clocks
    counts = np.array([terms(row.actions(gpu), gpu) for row in rows])
    known = np.array([row.joules - power.idle * row.seconds - _fp32(row, gpu) for row in rows])
    weights = 1.0 / np.array([row.joules for row in rows])
    if clocks is not None:
        seen = [min(row.clock, clocks.boost) for row in rows]
        counts[:, CORE] *= np.array([[clocks.saved(clock)] for clock in seen])
        counts[:, BUSY] *= np.array([[clocks.drawn(clock)] for clock in seen])
    found, _ = nnls(counts * weights[:, None], known * weights)
    return with_terms(gpu, found)


def with_terms(gpu: Gpu, found: Floats) -> Power:
    """*gpu*'s power with the joules of `TERMS`; those of other formats go with the time that they take at the peak."""
    bf16, hbm, write, l2, busy = map(float, found)
    flop: dict[str | DType, float | str] = {
        dtype: each if dtype is DType.FP32 else bf16 * gpu.flops[DType.BF16] / gpu.flops[dtype]
        for dtype, each in gpu.power.flop.items()}
    return evolve(gpu.power, flop=flop, hbm=hbm, write=write, l2=l2, busy=busy)


def _fp32(row: Sustained, gpu: Gpu) -> float:
    cost = gpu.power.flop.get(DType.FP32, 0.0)
    return sum(cost * done.flops for done in row.actions(gpu) if done.dtype is DType.FP32)


def left_out(rows: Sequence[Sustained], gpu: Gpu, group: Callable[[Sustained], Hashable]) -> list[Foretold]:
    """Foretell each group of *rows* by a fit of all others."""
    found: dict[int, Foretold] = {}
    for name in dict.fromkeys(map(group, rows)):
        others = [row for row in rows if group(row) != name]
        left = evolve(gpu, power=fit(others, gpu))
        found |= {id(row): foretell(row, left) for row in rows if group(row) == name}
    return [found[id(row)] for row in rows]


def foretell(row: Sustained, gpu: Gpu) -> Foretold:
    """What *row* takes on *gpu* by its power model: watts in its own time under load; seconds and joules from its cool
    time, at the clock that the limit leaves."""
    own = _drawn(row, row.seconds, gpu)
    watts = min(gpu.power.limit, gpu.power.idle + own.total / row.seconds)
    seconds, energy = _sustained(row, gpu)
    return Foretold(row, watts, seconds, energy)


def _drawn(row: Sustained, seconds: float, gpu: Gpu) -> Joules:
    each = [joules(done, gpu.power) for done in row.actions(gpu, seconds)]
    return Joules(*(sum(getattr(part, name) for part in each) for name in ("core", "busy", "rest")))


def _sustained(row: Sustained, gpu: Gpu) -> tuple[float, float]:
    """Seconds and joules of a launch once there is no credit left."""
    if gpu.power.clocks is None:
        return row.cool, _drawn(row, row.cool, gpu).total + gpu.power.idle * row.cool
    drawn = _drawn(row, row.cool, gpu)
    span = Span("kernel", row.family, row.cool, drawn.total, bound=_bound(row, gpu), core_joules=drawn.core,
                busy_joules=drawn.busy)
    timeline = Timeline.of([Lap((span,))])
    clock = Clock(gpu.power, evolve(gpu.power.clocks, credit=0.0))
    pace: Pace = clock.pace(timeline, 0.0)
    seconds = timeline.paced(pace)
    return seconds, seconds * clock.watts(timeline, pace)


def _bound(row: Sustained, gpu: Gpu) -> str:
    compute = sum(kernel.work.flops / gpu.flops[kernel.work.dtype.element] for kernel in row.kernels)
    memory = sum(kernel.work.bytes / gpu.bandwidth for kernel in row.kernels)
    return "compute" if compute > memory else "memory"
