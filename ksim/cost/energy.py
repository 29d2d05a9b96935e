"""Energy: counts of actions times the joules of each.  Idle power is added where the time is known.

A GPU draws ``P = idle + sum of (what an action costs) x (how often a second)``, as activity factors of its components
would have it (EnergAIzer, arXiv 2604.20105): a component that is busy for a share of the time draws that share of its
power.  The joules of actions of SMs and their caches grow with the square of the voltage, and so fall with the clock.
The watts that SMs draw while they are busy grow with the clock, too.  Memory and links have clocks of their own.

The SM `Clock` has state: it follows the power drawn, and paces the kernels that arithmetic bounds.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import define, evolve, field, frozen

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.basic import GroupedGemm, Pointwise
from ksim.flow.costs import ClockScaling, Scalable
from ksim.foundation.units import DType
from ksim.specs.hardware import Clocks, Gpu, Power

#: The share of the L2 cache that tensors may fill so that a kernel which only moves memory finds them there, where the
#: kernel before it left them: what our sweep's norms, activations and rotary embeddings fit (efficiency/pointwise.py).
RESIDENT = 0.85
#: The share of a GPU's SMs that a collective's kernel keeps busy: vLLM's all-reduce has 36 thread blocks
#: (csrc/custom_all_reduce.cuh), NCCL at most 32 channels (src/include/device.h), of some 132 SMs.
COMMUNICATING = 0.25


@frozen
class Actions:
    """The actions of a kernel on one GPU that cost energy.

    FLOP of number format `dtype` with tiles filled up; bytes of device memory, of these `written`, and of the L2 cache;
    seconds in which SMs are `busy`, in a grouped GEMM with weights of format `experts`; bytes `sent` to peers and
    through a NIC (`routed`).
    """

    flops: float = 0.0
    dtype: DType = DType.BF16
    hbm: float = 0.0
    written: float = 0.0
    l2: float = 0.0
    busy: float = 0.0
    experts: DType | None = None
    sent: float = 0.0
    routed: float = 0.0


@frozen
class Joules:
    """Joules beyond idle power, at the boost clock.

    `core` are those of the SMs' actions, `busy` those that SMs draw while they are busy, `rest` those of memory and
    links.
    """

    core: float
    busy: float
    rest: float

    @property
    def total(self) -> float:
        return self.core + self.busy + self.rest


def actions(kernel: Kernel, seconds: Any, gpu: Gpu) -> Actions:
    """The actions of *kernel*, which takes *seconds* on *gpu*; columns where its work is columns."""
    work = kernel.work
    moved = work.bytes
    hbm, written = moved, work.writes
    if isinstance(kernel, Pointwise):
        far = 1.0 - (moved < RESIDENT * gpu.l2)
        hbm, written = _larger(kernel.cold_bytes, far * moved), far * written
    return Actions(
        flops=_larger(work.padded, work.flops), dtype=work.dtype, hbm=hbm, written=written, l2=moved,
        busy=busy_seconds(seconds, gpu), experts=kernel.weights.element if isinstance(kernel, GroupedGemm) else None,
    )


def _larger(one: Any, other: Any) -> Any:
    """The larger of two numbers, or of each pair in two columns."""
    return np.maximum(one, other) if isinstance(other, np.ndarray) else max(one, other)


def busy_seconds(seconds: Any, gpu: Gpu, larger: Callable[[Any, Any], Any] = _larger) -> Any:
    """The part of *seconds* in which SMs are busy; *larger* returns the larger of two numbers, or columns."""
    return larger(0.0, seconds - gpu.power.start)


def sending(size: float, routed: float, seconds: float, share: float = COMMUNICATING) -> Actions:
    """The actions of one rank in a collective of *seconds*, which sends *size* bytes, *routed* of them through its NIC.

    It reads what it sends, and writes as much that others send.  Its kernel has a *share* of the SMs.
    """
    return Actions(hbm=2 * size, written=size, l2=2 * size, busy=share * seconds, sent=size, routed=routed)


def joules(done: Actions, power: Power) -> Joules:
    """The joules of the actions *done* on one GPU."""
    core = done.flops * power.flop.get(done.dtype, 0.0) + done.l2 * power.l2
    rest = (done.hbm * power.hbm + done.written * power.write + done.sent * power.link
            + done.routed * power.network)
    busy = power.busy if done.experts is None else power.experts.get(done.experts, power.busy)
    return Joules(core, done.busy * busy, rest)


#: Halvings of the range of clocks to find the one at which a GPU draws its limit: to 0.1 %, half of the 15 MHz that
#: clocks go by.
HALVINGS = 10
#: Seconds before time 0 for which a GPU idled.
LONG = 1e9
#: The share of the credit that counts as all of it, as sums of what was earned are rounded.
NEARLY = 1.0 - 1e-9
#: Paces at these clocks that are kept.
MOST_RUNGS = 1 << 14


@frozen
class Setting:
    """The limits that a GPU is set to: the most watts, and the highest clock in Hz; None is no limit."""

    cap: float | None = None
    clock: float | None = None

    def within(self, other: "Setting") -> "Setting":
        """The stricter of both."""
        return Setting(_least(self.cap, other.cap), _least(self.clock, other.clock))


def _least(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else min(one, other)


FREE = Setting()


@define
class Clock:
    """One GPU's clock under its power limit; steps are given in the order in which they start.

    A GPU may draw more than its limit for a while: it has credit, in joules, that is spent above the limit and
    earned below it, also while it idles, as it has done for long before its first step.  With credit, it runs at the
    boost clock, or the one that it is set to; without, at the one at which it draws just its limit, or the lowest.
    Once it has spent all, it spends again only when all is earned back: on an H200 whose clock had fallen, a step of 32
    decodes and 1,500 new tokens ran 22 of its 36 ms at the lower clock.  Within a step, power is taken to be even.
    """

    power: Power
    clocks: Clocks
    _boost: ClockScaling = field(init=False)
    _credit: float = field(init=False)
    _spent: bool = field(default=False, init=False)
    _busy_until: float = field(default=-LONG, init=False)
    _rungs: dict[tuple[float, int], ClockScaling] = field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._boost, self._credit = self._at(self.clocks.boost), self.clocks.credit

    @classmethod
    def tired(cls, power: Power, clocks: Clocks) -> "Clock":
        """The clock of a GPU that has been at work for long, and never has credit."""
        return cls(power, evolve(clocks, credit=0.0))

    def pace(self, step_cost: Scalable, start: float, setting: Setting = FREE) -> ClockScaling:
        """The clock scaling of a step that begins at *start* (s) on a GPU that is set to *setting*."""
        limit = setting.cap or self.power.limit
        free = self._at(setting.clock) if setting.clock else self._boost
        seconds, most = step_cost.seconds_at(free), self.clocks.credit
        watts = self._watts_over(seconds, step_cost, free)
        if watts <= limit and self._credit == most:  # nothing to spend, nothing to earn
            self._busy_until = start + seconds
            return free
        self._settle(max(0.0, start - self._busy_until), self.power.idle, limit)
        self._spent = self._spent and self._credit < NEARLY * most
        credit = 0.0 if self._spent else self._credit
        carried = 1.0 if watts <= limit else min(1.0, credit / ((watts - limit) * seconds))
        self._settle(carried * seconds, watts, limit)
        self._spent = self._spent or carried < 1.0
        pace = free if carried == 1.0 else free.blended(self._limited(step_cost, free.clock, limit), carried)
        self._busy_until = start + step_cost.seconds_at(pace)
        return pace

    def even_pace(self, steps: Scalable, setting: Setting = FREE) -> ClockScaling | None:
        """The clock scaling of all of *steps*, which are columns, if none of them spends credit and none earns any: as
        `pace` would say of each, after which `rest_from` must be told when the last one ended."""
        free = self._at(setting.clock) if setting.clock else self._boost
        if self._credit < self.clocks.credit:
            return None
        watts = self.power.idle + steps.joules_at(free) / steps.seconds_at(free)
        return free if np.all(watts <= (setting.cap or self.power.limit)) else None

    def rest_from(self, moment: float) -> None:
        """Note that the GPU has nothing to do from *moment* on."""
        self._busy_until = moment

    def watts(self, step_cost: Scalable, pace: ClockScaling) -> float:
        """The watts that the GPU draws in a step at *pace*."""
        return self._watts_over(step_cost.seconds_at(pace), step_cost, pace)

    def _watts_over(self, seconds: float, step_cost: Scalable, pace: ClockScaling) -> float:
        """The watts in a step that takes so many *seconds* at *pace*."""
        return float(self.power.idle + step_cost.joules_at(pace) / seconds if seconds else self.power.idle)

    def least_watts(self, step_cost: Scalable) -> float:
        """The watts in a step at the lowest clock, which are the fewest that the GPU can draw."""
        return self.watts(step_cost, self._at(self.clocks.least))

    def _limited(self, step_cost: Scalable, high: float, limit: float) -> ClockScaling:
        """The pace at the highest clock below *high* at which a step keeps to its *limit*, or else at the lowest."""
        low, top = 0, 1 << HALVINGS
        while top - low > 1:
            middle = (low + top) // 2
            hot = self.watts(step_cost, self._rung(high, middle)) > limit
            low, top = (low, middle) if hot else (middle, top)
        return self._rung(high, low)

    def _rung(self, high: float, rung: int) -> ClockScaling:
        """The pace at one of the clocks that lie evenly between the lowest and *high*."""
        pace = self._rungs.get((high, rung))
        if pace is None:
            if len(self._rungs) >= MOST_RUNGS:  # governors may choose ever new clocks
                self._rungs.clear()
            least = self.clocks.least
            pace = self._rungs[high, rung] = self._at(least + (high - least) * rung / (1 << HALVINGS))
        return pace

    def _at(self, clock: float) -> ClockScaling:
        return ClockScaling(self.clocks.slowed(clock), self.clocks.saved(clock), self.clocks.drawn(clock), clock)

    def _settle(self, seconds: float, watts: float, limit: float) -> None:
        self._credit = min(self.clocks.credit, max(0.0, self._credit + (limit - watts) * seconds))
