"""TODO"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from attrs import astuple, evolve, frozen
from scipy.optimize import nnls  # type: ignore[import-untyped]

from ksim.calibration.measurements import Floats
from ksim.calibration.power.sustained import Sustained, terms
from ksim.cost.clock import Clock
from ksim.cost.energy import Joules, joules
from ksim.flow.timeline import Lap, Span, Timeline
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


@frozen
class Foretold:
    """What a row should take under sustained load; `joules` are of a launch that takes the foretold `seconds`.

    `watts` are those in the time that the row itself took.
    """

    row: Sustained
    watts: float
    seconds: float
    joules: float

    @property
    def power_error(self) -> float:
        """Of the joules a launch where its time is known, per cent, signed."""
        return 100.0 * (self.watts / self.row.watts - 1.0)

    @property
    def energy_error(self) -> float:
        """Of the joules a launch with its time foretold too, per cent, signed."""
        return 100.0 * (self.joules / self.row.joules - 1.0)

    @property
    def time_error(self) -> float:
        """Per cent, signed."""
        return 100.0 * (self.seconds / self.row.seconds - 1.0)


def taught(rows: Sequence[Sustained], gpu: Gpu, group: Callable[[Sustained], Hashable]) -> list[Gpu]:
    """For each of *rows*, *gpu* with the power that those of all other groups teach."""
    found = {name: evolve(gpu, power=fit([row for row in rows if group(row) != name], gpu))
             for name in dict.fromkeys(map(group, rows))}
    return [found[group(row)] for row in rows]


def foretell(row: Sustained, gpu: Gpu, recovered: bool = False) -> Foretold:
    """What *row* takes on *gpu*, at the clock that the power limit leaves; *recovered* takes its graph's for cool time.
    """
    own = _drawn(row, row.seconds, gpu)
    watts = min(gpu.power.limit, gpu.power.idle + own.total / row.seconds)
    cool = row.graph if recovered else cooled(row, gpu)
    return Foretold(row, watts, *_sustained(row, cool, gpu))


def cooled(row: Sustained, gpu: Gpu) -> float:
    """Seconds of *row*'s launch at the boost clock: those of its graph ran at the clock that the row before had left.

    A graph is timed for a few milliseconds, and a GPU that was at its limit takes some 60 ms to recover.
    """
    clocks = gpu.power.clocks
    if clocks is None or bound(row, gpu) == "memory":
        return row.graph
    return row.graph / clocks.slowed(min(row.left, clocks.boost))


def bound(row: Sustained, gpu: Gpu) -> str:
    """What limits *row* by the roofline: compute or memory."""
    compute = sum(kernel.work.flops / gpu.flops[kernel.work.dtype.element] for kernel in row.kernels)
    memory = sum(kernel.work.bytes / gpu.bandwidth for kernel in row.kernels)
    return "compute" if compute > memory else "memory"


def _drawn(row: Sustained, seconds: float, gpu: Gpu) -> Joules:
    each = [astuple(joules(done, gpu.power)) for done in row.actions(gpu, seconds)]
    return Joules(*map(sum, zip(*each, strict=True)))


def _sustained(row: Sustained, cool: float, gpu: Gpu) -> tuple[float, float]:
    """Seconds and joules of a launch of *cool* seconds once there is no credit left."""
    drawn = _drawn(row, cool, gpu)
    if gpu.power.clocks is None:
        return cool, drawn.total + gpu.power.idle * cool
    span = Span("kernel", row.family, cool, drawn.total, bound=bound(row, gpu), core_joules=drawn.core,
                busy_joules=drawn.busy)
    timeline = Timeline.of([Lap((span,))])
    clock = Clock.tired(gpu.power, gpu.power.clocks)
    pace = clock.pace(timeline, 0.0)
    seconds = timeline.paced(pace)
    return seconds, seconds * clock.watts(timeline, pace)
