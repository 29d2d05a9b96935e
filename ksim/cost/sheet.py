"""Kernels of one kind as priced: spans as columns, and what they add to the totals of a step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.compute.kernels.sweep import KernelSweep
from ksim.cost.energy import actions, joules
from ksim.cost.spans import MEASURED, Pricer
from ksim.flow.bounds import BOUNDS, COMPUTE
from ksim.flow.timeline import Span
from ksim.oracles import Estimates, estimates

__all__ = ["ADDED", "Sheet", "added", "sheets"]

Floats = NDArray[np.float64]

#: What a span adds to `Totals`, in the order of their fields; the last two by its family.
ADDED = 11


@frozen(eq=False)
class Sheet:
    """Columns of (kernels,); `cool` is the share of what the oracle `found` that they take at the boost clock."""

    kernels: KernelSweep
    found: Estimates
    cool: Any
    seconds: Floats
    energy: Any

    @classmethod
    def of(cls, kernels: KernelSweep, found: Estimates, pricer: Pricer) -> "Sheet":
        """Of *kernels* as *pricer*'s oracle *found* them."""
        cool = kernels.spread([pricer.cool(family) for family in kernels.families])
        throttled = np.array([source in MEASURED for source in found.sources])
        cool = np.where((found.bound == COMPUTE) & throttled[found.source], cool, 1.0)
        seconds: Any = cool * found.seconds
        return cls(kernels, found, cool, seconds,
                   joules(actions(kernels.kernel, seconds, pricer.gpu), pricer.gpu.power))

    def added(self) -> Floats:
        """What each adds to totals: (ADDED, kernels)."""
        seconds, found, energy, work = self.seconds, self.found, self.energy, self.kernels.kernel.work
        clocked = found.bound == COMPUTE
        return np.array([seconds, energy.total, work.flops, work.bytes, seconds * found.extrapolated,
                         seconds * clocked, energy.core, energy.busy, energy.busy * clocked,
                         seconds - self.cool * found.low, self.cool * found.high - seconds])

    def span(self, label: str, row: int) -> Span:
        """The kernel at *row*."""
        kernel, found, cool = self.kernels[row], self.found, float(self.cool[row])
        work, columns = kernel.work, (self.energy.core, self.energy.busy, self.energy.rest)
        core, busy, rest = (float(column[row]) for column in columns)
        return Span(
            label, kernel.family, float(self.seconds[row]), core + busy + rest, work.flops, work.bytes,
            BOUNDS[found.bound[row]], float(found.waves[row]), float(found.idle[row]), "", kernel,
            found.launches[found.launch[row]], found.sources[found.source[row]],
            cool * float(found.roofline_ratio[row]), cool * float(found.low[row]), cool * float(found.high[row]),
            bool(found.extrapolated[row]), core, busy)


def sheets(asked: Sequence[KernelSweep], pricer: Pricer) -> list[Sheet]:
    """Price all of *asked*."""
    return [Sheet.of(kernels, estimates(pricer.oracle, kernels, pricer.gpu), pricer) for kernels in asked]


def added(span: Span) -> tuple[float, ...]:
    """What one *span* adds to totals."""
    seconds, busy = span.seconds, span.busy_joules
    return (seconds, span.joules, span.flops, span.bytes, seconds * span.extrapolated, seconds * span.clocked,
            span.core_joules, busy, busy * span.clocked, seconds - span.low, span.high - seconds)
