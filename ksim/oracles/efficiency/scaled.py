"""An oracle for kernels of another library than was measured: so much faster or slower, kind by kind."""

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.sweep import KernelSweep
from ksim.oracles import CompiledAttention, Estimates, compile_attention, estimates, least_seconds
from ksim.oracles.answers import Floats
from ksim.specs.hardware import Gpu

__all__ = ["ScaledOracle"]


@frozen
class ScaledOracle:
    """What `oracle` says, times what `time_factors` has for "family/format of weights"; never below the roofline.

    What `ceilings` name takes at most so many times the roofline.  The constants of profiles come from vLLM's kernels.
    """

    oracle: Any
    time_factors: Mapping[str, float] = field(factory=dict)
    ceilings: Mapping[str, float] = field(factory=dict)

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> Estimates:
        answers, factors = estimates(self.oracle, kernels, gpu), self._spread(self.time_factors, kernels)
        ceilings = self._spread(self.ceilings, kernels)
        factors = np.where(np.isnan(factors) & ~np.isnan(ceilings), 1.0, factors)
        scaled = ~np.isnan(factors)
        if not scaled.any():
            return answers
        factors = np.fmin(factors, ceilings / answers.roofline_ratio)
        factors = np.maximum(factors, least_seconds(kernels, gpu) / answers.seconds)
        factors = np.where(scaled, factors, 1.0)
        return evolve(answers, seconds=factors * answers.seconds, roofline_ratio=factors * answers.roofline_ratio,
                      low=factors * answers.low, high=factors * answers.high)

    def compile_attention(self, layer: AttentionLayer, gpu: Gpu) -> CompiledAttention | None:
        """That of the oracle, where attention is not scaled."""
        scaled = [_value(table, layer.family, layer) for table in (self.time_factors, self.ceilings)]
        return compile_attention(self.oracle, layer, gpu) if all(map(isnan, scaled)) else None

    def _spread(self, table: Mapping[str, float], kernels: Sequence[Kernel]) -> Floats:
        """What *table* has for each of *kernels*, nan where it has nothing."""
        if isinstance(kernels, KernelSweep):
            return kernels.spread([_value(table, family, kernels.kernel) for family in kernels.families])
        return np.array([_value(table, kernel.family, kernel) for kernel in kernels])


def _value(table: Mapping[str, float], family: str, kernel: Any) -> float:
    return table.get(f"{family}/{getattr(kernel, 'weights', '')}", nan)
