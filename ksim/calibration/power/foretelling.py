"""What kernels take under sustained load by a power model, and how well that foretells those left out of its fit."""

from collections.abc import Callable, Hashable, Sequence

from attrs import astuple, evolve, frozen

from ksim.calibration.power.fitting import fit
from ksim.calibration.power.sustained import Sustained
from ksim.cost.clock import Clock
from ksim.cost.energy import Joules, joules
from ksim.flow.kernels import KernelCost
from ksim.flow.steps import PricedBlock, StepCost
from ksim.specs.hardware import Gpu


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
    span = KernelCost.of("kernel", row.family, cool, joules=drawn.total, bound=bound(row, gpu),
                         sm_action_joules=drawn.core, sm_active_joules=drawn.busy)
    timeline = StepCost.of([PricedBlock.of([span])])
    clock = Clock.tired(gpu.power, gpu.power.clocks)
    pace = clock.pace(timeline, 0.0)
    seconds = timeline.seconds_at(pace)
    return seconds, seconds * clock.watts(timeline, pace)
