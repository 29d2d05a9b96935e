"""The power model fitted to kernels that ran back to back, and its predictions for kernels that were left out.

The joules of actions are fitted by non-negative least squares, since energy is linear in them.  What SMs and caches did
at a lower clock is scaled to the boost clock by the square of the voltage.  A GPU at its power limit draws the limit.
"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from attrs import astuple, evolve, frozen

from ksim.calibration.power.sustained import BUSY, CORE, SustainedKernel, terms, with_terms
from ksim.calibration.regression import library
from ksim.cost.clock import Clock
from ksim.cost.energy import Joules, joules
from ksim.flow.kernels import KernelCost
from ksim.flow.steps import PricedBlock, StepCost
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu
from ksim.specs.power import Power


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
