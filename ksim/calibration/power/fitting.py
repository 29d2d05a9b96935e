"""Joules of actions by non-negative least squares over kernels that ran back to back.

Energy is linear in what actions cost.  What SMs and caches did at a lower clock is taken back to the boost clock by the
square of the voltage; a GPU at its limit draws the limit.
"""

from collections.abc import Sequence

import numpy as np
from attrs import evolve
from scipy.optimize import nnls  # type: ignore[import-untyped]

from ksim.calibration.measurements import Floats
from ksim.calibration.power.sustained import Sustained, terms
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu
from ksim.specs.power import Power

#: What is fitted: joules of a FLOP in BF16, and fields of `Power`; and which of that goes with the SMs' voltage.
TERMS = ("bf16", "hbm", "write", "l2", "busy")
CORE, BUSY = np.array([True, False, False, True, False]), np.array([False, False, False, False, True])


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


def joules_of(power: Power) -> Floats:
    """What each of `TERMS` costs by *power*: what `with_terms` takes."""
    return np.array([power.flop[DType.BF16], power.hbm, power.write, power.l2, power.busy])


def _fp32(row: Sustained, gpu: Gpu) -> float:
    cost = gpu.power.flop.get(DType.FP32, 0.0)
    return sum(cost * done.flops for done in row.actions(gpu) if done.dtype is DType.FP32)
