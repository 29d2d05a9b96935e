"""What a kernel does that collectors of public tables run over and over on the same buffers.

What fits the L2 cache together is read from there.  A row of an expert layer is one rank's whole module.
"""

from functools import cache

import numpy as np
from attrs import evolve

from ksim.calibration.bounds import formats
from ksim.calibration.kernels import fused, kernels
from ksim.calibration.measurements import Floats, Points
from ksim.calibration.power.sustained import terms
from ksim.calibration.routing import balanced, power_law
from ksim.compute.expert_rows import ExpertRows
from ksim.compute.kernels import Kernel
from ksim.cost.energy import RESIDENT, Actions, actions
from ksim.foundation.errors import DataError
from ksim.specs.hardware import Gpu

#: How many layers of a GEMM take turns in the collector, by number format; in others it is one.
LAYERS = {"bf16": 6, "fp8": 6}


def counts(points: Points, seconds: Floats, gpu: Gpu) -> Floats:
    """How often `fitting.TERMS` happen in a launch of each of *points*, which takes *seconds* on *gpu*.

    Raises DataError for a number format that *gpu* does not compute in.
    """
    if (element := formats(points)[1].element) not in gpu.flops:
        raise DataError(str(points), f"{gpu.name} does not compute in {element}")
    return np.array([terms(_done(points, i, float(seconds[i]), gpu), gpu) for i in range(len(points))])


def _done(points: Points, point: int, seconds: float, gpu: Gpu) -> list[Actions]:
    launched = _experts(points, point) if points.family == "moe" else kernels(points, point)
    cached = _touched(points, point, launched) < RESIDENT * gpu.l2
    each = [actions(kernel, seconds / len(launched), gpu) for kernel in launched]
    return [evolve(done, hbm=0.0, written=0.0) for done in each] if cached else each


def _touched(points: Points, point: int, launched: list[Kernel]) -> float:
    """Bytes from one use of a buffer to its next."""
    moved = sum(kernel.work.bytes for kernel in launched)
    if points.family != "gemm":
        return moved
    weights = float(points["n"][point]) * float(points["k"][point]) * formats(points)[0].bytes
    return moved + (LAYERS.get(points.dtype, 1) - 1) * weights


def _experts(points: Points, point: int) -> list[Kernel]:
    """The fused kernels of one rank's experts."""
    tokens, experts, top, hidden, inter, ranks = (
        int(points[name][point]) for name in ("t", "e", "topk", "h", "inter", "ep"))
    spread = _spread(tokens, top, experts, ranks, float(points["skew"][point]))
    return fused(spread, tokens, hidden, inter, formats(points))


@cache
def _spread(tokens: int, top_k: int, experts: int, ranks: int, skew: float) -> ExpertRows:
    drawn = power_law(tokens, top_k, experts, ranks, skew, 0) if skew else balanced(tokens, top_k, experts, ranks)
    rows, count = np.unique(drawn[drawn > 0], return_counts=True)
    return tuple(zip(rows.tolist(), count.tolist(), strict=True)) or ((1, 1),)
