"""Oracles around another one: `DrawnOracle` draws the systematic errors that it may have, `ScaledOracle` makes kernels
of some families slower or faster, as those of another library than was measured.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from ksim.compute.graph import KernelSweep
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import Attention, AttentionLayer
from ksim.flow.batch import Batch
from ksim.foundation.rng import stream
from ksim.oracles import CompiledAttention, Estimates, compile_attention, estimates, least_seconds
from ksim.oracles.answers import Floats
from ksim.specs.hardware import Gpu

if TYPE_CHECKING:
    from ksim.compute.kernels.mla import LatentLayer

__all__ = ["DrawnOracle", "deviation", "erring", "ScaledOracle"]


#: Standard deviations from the middle of a normal distribution to the ends of its 90 % interval.
_ENDS = 1.6449
#: A draw is no further out than this many standard deviations: nobody knows how errors are distributed there.
_FURTHEST = 3.0
#: Batches at which the interval of attention is asked for: it has another shape at every step, and one error in all.
_TYPICAL = (Batch.of(*[(1, 1024)] * 32), Batch.of((1024, 0)))


@lru_cache(maxsize=4096)
def deviation(seed: int, family: str) -> float:
    """The common error of all kernels of *family* in the draw *seed*, in standard deviations."""
    drawn = float(stream(seed, f"kernel_errors.{family}").standard_normal())
    return max(-_FURTHEST, min(_FURTHEST, drawn))


def erring(deviation: Any, low: Any, high: Any) -> Any:
    """The factor of what is off by *deviation*, where *low* and *high* are the ends of the 90 % interval of factors.

    The logarithm of the factor is normal on either side of 1.  Where nobody knows the interval, the factor is 1.
    """
    ends = np.where(deviation < 0, low, high)
    known = np.isfinite(ends) & (ends > 0)
    return np.where(known, np.where(known, ends, 1.0) ** (np.abs(deviation) / _ENDS), 1.0)


@frozen
class DrawnOracle:
    """The estimates of `oracle` with errors: all kernels of a family err together, by the draw `seed`.

    A kernel's error is so many standard deviations of its own 90 % interval; attention has one error a layer, by its
    interval at typical batches.  No time falls below the roofline.
    """

    oracle: Any
    seed: int

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> Estimates:
        answers, off = estimates(self.oracle, kernels, gpu), self._deviations(kernels)
        factors = erring(off, answers.low / answers.seconds, answers.high / answers.seconds)
        for rows, layer in _layers(kernels):
            factors[rows] = self.factor(layer, gpu)
        factors = np.where(factors < 1, np.maximum(factors, np.minimum(1.0, least_seconds(kernels, gpu)
                                                                       / answers.seconds)), factors)
        return evolve(answers, seconds=factors * answers.seconds, roofline_ratio=factors * answers.roofline_ratio,
                      low=factors * answers.low, high=factors * answers.high)

    def compile_attention(self, layer: "AttentionLayer | LatentLayer", gpu: Gpu) -> CompiledAttention | None:
        """Compile *layer* for the oracle, with the error of the layer; whoever uses it holds times to the roofline.

        Return None for latent attention, each kernel of which has an error of its own.
        """
        if not isinstance(layer, AttentionLayer):
            return None
        compiled = compile_attention(self.oracle, layer, gpu)
        return compiled and _DrawnAttention(compiled, self.factor(layer, gpu))

    def factor(self, layer: AttentionLayer, gpu: Gpu) -> float:
        """The factor of the times of all kernels of *layer*.

        Layers of one shape err alike, those of images or with windows too: their kernels do not say which they are.
        """
        typical = _layer(layer)
        answers = estimates(self.oracle, [typical.over(batch) for batch in _TYPICAL], gpu)
        low, high = (float(np.exp(np.log(ends / answers.seconds).mean())) for ends in (answers.low, answers.high))
        return float(erring(deviation(self.seed, layer.family), low, high))

    def _deviations(self, kernels: Sequence[Kernel]) -> Floats:
        if isinstance(kernels, KernelSweep):
            return kernels.spread([deviation(self.seed, family) for family in kernels.families])
        return np.array([deviation(self.seed, kernel.family) for kernel in kernels])


@frozen
class _DrawnAttention:
    """Compiled attention whose times are all off by one factor."""

    compiled: CompiledAttention
    factor: float

    def price(self, counts: Sequence[int]) -> tuple[float, bool, bool]:
        seconds, computes, within = self.compiled.price(counts)
        return self.factor * seconds, computes, within

    def columns(self, counts: Sequence[Floats]) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
        seconds, computes, within = self.compiled.columns(counts)
        return self.factor * seconds, computes, within


def _layers(kernels: Sequence[Kernel]) -> list[tuple[Any, AttentionLayer]]:
    """The rows of *kernels* that are attention, and the layers that they belong to."""
    if isinstance(kernels, KernelSweep):
        one = kernels.kernel
        return [(slice(None), _layer(one))] if isinstance(one, Attention) else []
    return [(row, _layer(kernel)) for row, kernel in enumerate(kernels) if isinstance(kernel, Attention)]


def _layer(kernel: Attention | AttentionLayer) -> AttentionLayer:
    """A layer of the same shape that sees all tokens."""
    return AttentionLayer(kernel.heads, kernel.kv_heads, kernel.head_dim, cache=kernel.cache)


#: How many times as long kernels take: by "family/format of weights", of one architecture "family/format@hopper"; a
#: number, or numbers by the fewest rows that they are of: of a GEMM, or the tokens of a grouped one.
Factors = Mapping[str, float | Mapping[str, float]]


@frozen
class ScaledOracle:
    """The estimates of `oracle` times the `time_factors` of "family/format of weights"; never below the roofline.

    Kernels that `ceilings` name take at most so many times the roofline.  Profiles were fitted to vLLM's kernels.
    """

    oracle: Any
    time_factors: Factors = field(factory=dict)
    ceilings: Factors = field(factory=dict)

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> Estimates:
        answers = estimates(self.oracle, kernels, gpu)
        factors, ceilings = (_spread(table, kernels, gpu) for table in (self.time_factors, self.ceilings))
        factors = np.where(np.isnan(factors) & ~np.isnan(ceilings), 1.0, factors)
        scaled = ~np.isnan(factors)
        if not scaled.any():
            return answers
        factors = np.fmin(factors, ceilings / answers.roofline_ratio)
        factors = np.maximum(factors, least_seconds(kernels, gpu) / answers.seconds)
        factors = np.where(scaled, factors, 1.0)
        return evolve(answers, seconds=factors * answers.seconds, roofline_ratio=factors * answers.roofline_ratio,
                      low=factors * answers.low, high=factors * answers.high)

    def compile_attention(self, layer: "AttentionLayer | LatentLayer", gpu: Gpu) -> CompiledAttention | None:
        """Compile *layer* for the oracle; None where attention is scaled."""
        scaled = [_factor(table, layer.family, layer, gpu) for table in (self.time_factors, self.ceilings)]
        return compile_attention(self.oracle, layer, gpu) if np.isnan(scaled).all() else None


def _spread(table: Factors, kernels: Sequence[Kernel], gpu: Gpu) -> Floats:
    """The value of *table* for each of *kernels*, nan where it has none."""
    if not table:
        return np.full(len(kernels), nan)
    if not isinstance(kernels, KernelSweep):
        return np.array([_factor(table, kernel.family, kernel, gpu) for kernel in kernels])
    codes, rows = kernels.spread(range(len(kernels.families))), np.arange(len(kernels))
    values = [np.broadcast_to(_factor(table, family, kernels.kernel, gpu), len(rows)) for family in kernels.families]
    spread: Floats = np.stack(values)[codes, rows]
    return spread


def _factor(table: Factors, family: str, kernel: Any, gpu: Gpu) -> Any:
    """The value of *table* for *kernel*, or a column of them for one whose rows are a column."""
    name = f"{family}/{getattr(kernel, 'weights', '')}"
    found = table.get(f"{name}@{gpu.architecture}", table.get(name, nan))
    if not isinstance(found, Mapping):
        return found
    fewest = sorted(found, key=int)
    rows = kernel.m if family == "gemm" else kernel.tokens
    place = np.searchsorted([int(least) for least in fewest], rows, side="right") - 1
    return np.where(place < 0, nan, np.array([found[least] for least in fewest])[place])
