"""An oracle that errs on purpose: a draw of the systematic errors that another one may have.

An oracle for kernels of another library than was measured: so much faster or slower, kind by kind.

Kernels of which a start and the shares of the peaks that they reach say enough, by their FLOP and bytes.

``seconds = start + (compute^p + memory^p + (steps x step)^p)^(1/p)``.  `steps` are what a kernel does one after the
other, such as the chunks of a recurrence.  Constants are each family's own.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isnan, nan
from typing import Any

import numpy as np
from attrs import evolve, field, frozen, validators
from numpy.typing import NDArray

from ksim.compute.graph import KernelSweep
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import Attention, AttentionLayer
from ksim.flow.batch import Batch
from ksim.foundation.rng import stream
from ksim.foundation.units import quantity
from ksim.oracles import CompiledAttention, Estimates, compile_attention, estimates, least_seconds
from ksim.oracles.answers import Floats
from ksim.oracles.efficiency.models import Array, Physics
from ksim.specs.hardware import Gpu

__all__ = ["DrawnOracle", "deviation", "erring", "ScaledOracle", "FEATURES", "LAUNCHES", "CONSTANTS", "Constants",
           "physics", "constants_of"]


#: Standard deviations from the middle of a normal distribution to the ends of its 90 % interval.
_ENDS = 1.6449
#: A draw is no further out than this many standard deviations: nobody knows how errors are distributed there.
_FURTHEST = 3.0
#: Batches at which the interval of attention is asked for: it has another shape at every step, and one error in all.
_TYPICAL = (Batch.of(*[(1, 1024)] * 32), Batch.of((1024, 0)))


@lru_cache(maxsize=4096)
def deviation(seed: int, family: str) -> float:
    """By how many standard deviations all kernels of *family* are off in the draw *seed*."""
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
    """What `oracle` says, but kernels of each family err together, as far as the draw `seed` says.

    A kernel's error is so many standard deviations of its own 90 % interval; attention's is that of its layer at
    typical batches.  No time falls below the roofline.
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

    def compile_attention(self, layer: AttentionLayer, gpu: Gpu) -> CompiledAttention | None:
        """That of the oracle with the error of the layer.  What compiled attention prices is held to the roofline."""
        compiled = compile_attention(self.oracle, layer, gpu)
        return compiled and _DrawnAttention(compiled, self.factor(layer, gpu))

    def factor(self, layer: AttentionLayer, gpu: Gpu) -> float:
        """By what the times of all kernels of *layer* are multiplied.

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


FEATURES = ("start_share", "log_compute_over_memory", "log_bytes_over_l2")
LAUNCHES = ("whole",)


@frozen
class Constants:
    """Seconds to `start` and of each `step`, shares of the peaks, and how sharply the larger side wins.

    `within` is how far, in log time, nine of ten of the kernels that the rest was fitted to are from it at most.
    """

    start: float = field(converter=quantity, validator=validators.ge(0))
    compute: float = field(validator=(validators.gt(0), validators.le(1)))
    memory: float = field(validator=(validators.gt(0), validators.le(1)))
    sharpness: float = field(validator=validators.ge(1))
    step: float = field(default=0.0, converter=quantity, validator=validators.ge(0))
    within: float = field(default=0.5, validator=validators.gt(0))


#: By family, and by architecture where kernels differ.  Fitted to kernels that NVIDIA AIConfigurator measured (095f58a,
#: Apache-2.0) on Hopper and data-centre Blackwell, least robust squares of log time, with the mean error over the rows
#: fitted to; on other GPUs, of which few are measured, they are off by half and more:
#: batched_gemm: 3,816 of latent attention's products (mla_bmm, vLLM 0.24 over torch.bmm), six GPUs, 12 %; the share of
#: the bandwidth is held at 1, for what they read is in the L2 cache there.
#: index_scores and sparse_mla together: 600 of GLM-5's attention modules (vLLM 0.24, BF16; H100, H200, B200), less what
#: ksim makes of their other kernels, 13 % of the module, decodes 11 %, prompts of up to 33,000 tokens 15 %.  Modules
#: take 134 us more than that at least, timed uncompiled and alone; `start` is 54 us, as decode steps of public serving
#: runs of GLM-5 have it (InferenceX, SGLang, 4 requests at a time: 17.9 ms on 8 H200, 17.1 ms on 8 B200).
#: conv_*, delta_*: linear_attention, vLLM 0.24 (FlashInfer's chunks; FLA's on other GPUs), up to 131,072 tokens, six
#: GPUs: conv_prompts 11,016 rows 9 %, conv_decodes 1,188 rows 5 %, delta_prompts 3,672 rows of Hopper 6 %, 7,344 of
#: Blackwell 11 %, 3,500 of the others 20 %, delta_decodes 1,182 rows 9 %.
#: kda_prompts: flashkda_fwd of the same table, up to 131,072 tokens: 760 rows of Hopper 7 %, 1,140 of Blackwell 6 %;
#: those of others are the delta rule's.  Decodes are within 13 to 19 % by delta_decodes, 6 to 14 % where they verify.
#: ssd_*, scan_*: not fitted, for no public table has them.  Decodes do as those of the delta rule, which move a matrix
#: the same way.  Prompts of Mamba-2 start five Triton kernels of 2.4 us each, and reach two thirds of what the delta
#: rule's chunks do on Hopper, which are CUTLASS's.  Mamba's scan takes an exponential for each state, and an SM has 16
#: of those a clock for 256 FLOP: 7 FLOP a state are at most 0.44 of the peak.
#: compressed_mla and block_sparse: not fitted, for no public table has them.  Shares of the peaks are those of
#: sparse_mla and of Mamba-2's Triton kernels, without what the former's measured modules take to start.
#: lora_shrink and lora_expand: not fitted to anything.  They are Triton kernels whose blocks look up their adapter and
#: gather their rows; shares of the peaks are estimates, and so is the factor of two by which they may be off.
CONSTANTS: Mapping[str, Mapping[str, Constants]] = {
    "batched_gemm": {"": Constants(start=4.2e-6, compute=0.6, memory=1.0, sharpness=1.8, within=0.3)},
    "index_scores": {"": Constants(start=10e-6, compute=1.0, memory=0.67, sharpness=2.0, within=0.3)},
    "sparse_mla": {"": Constants(start=54e-6, compute=0.425, memory=1.0, sharpness=8.0, within=0.3)},
    "compressed_mla": {"": Constants(start=12e-6, compute=0.425, memory=0.8, sharpness=4.0, within=0.7)},
    "block_sparse": {"": Constants(start=12e-6, compute=0.3, memory=0.55, sharpness=2.0, within=0.7)},
    "conv_prompts": {"": Constants(start=2.9e-6, compute=0.074, memory=1.0, sharpness=3.75, within=0.25)},
    "conv_decodes": {"": Constants(start=1.9e-6, compute=0.028, memory=1.0, sharpness=12.0, within=0.11)},
    "delta_prompts": {
        "hopper": Constants(start=8.5e-6, compute=0.434, memory=0.548, sharpness=11.0, step=3.09e-6, within=0.19),
        "blackwell": Constants(start=17.1e-6, compute=0.963, memory=0.248, sharpness=12.0, step=2.36e-6, within=0.31),
        "": Constants(start=15.6e-6, compute=0.098, memory=1.0, sharpness=3.5, step=1.8e-6, within=0.51)},
    "lora_shrink": {"": Constants(start=5e-6, compute=0.3, memory=0.6, sharpness=2.0, within=0.7)},
    "lora_expand": {"": Constants(start=4e-6, compute=0.3, memory=0.6, sharpness=2.0, within=0.7)},
    "delta_decodes": {"": Constants(start=3.8e-6, compute=0.291, memory=1.0, sharpness=1.2, within=0.2)},
    "kda_prompts": {
        "hopper": Constants(start=18.1e-6, compute=1.0, memory=0.456, sharpness=1.29, step=4.44e-6, within=0.16),
        "blackwell": Constants(start=16.2e-6, compute=0.2, memory=0.313, sharpness=1.91, step=4.14e-6, within=0.12),
        "": Constants(start=15.6e-6, compute=0.098, memory=1.0, sharpness=3.5, step=1.8e-6, within=0.7)},
    "ssd_prompts": {"": Constants(start=12e-6, compute=0.3, memory=0.55, sharpness=2.0, within=0.7)},
    "ssd_decodes": {"": Constants(start=3.8e-6, compute=0.291, memory=1.0, sharpness=1.2, within=0.4)},
    "scan_prompts": {"": Constants(start=3e-6, compute=0.3, memory=0.8, sharpness=2.0, within=0.7)},
    "scan_decodes": {"": Constants(start=3.8e-6, compute=0.3, memory=1.0, sharpness=1.2, within=0.4)},
}
#: Architectures that the constants for any were fitted to, and how much wider intervals are on others.
FITTED, WIDER = {"hopper", "blackwell"}, 4.0


def constants_of(family: str, gpu: Gpu) -> Constants:
    """The constants of *family* on *gpu*, whose interval is wider where they come from other architectures."""
    known = CONSTANTS[family]
    constants = known.get(gpu.architecture) or known[""]
    alike = gpu.architecture in FITTED or len(known) > 1
    return constants if alike else evolve(constants, within=WIDER * constants.within)


def physics(gpu: Gpu, shapes: Mapping[str, Array], constants: Constants) -> Physics:
    """Price kernels by their columns `flops` and `peak` (FLOP/s of their format), `bytes`, and `steps`."""
    compute, memory = shapes["flops"] / shapes["peak"], shapes["bytes"] / gpu.bandwidth
    sides = np.stack([compute / constants.compute, memory / constants.memory, constants.step * shapes["steps"]])
    # Scaled by the largest side, for high powers of seconds vanish.
    largest = np.maximum(sides.max(axis=0), 1e-12)
    power = constants.sharpness
    seconds = constants.start + largest * ((sides / largest) ** power).sum(axis=0) ** (1.0 / power)
    features = np.column_stack([
        constants.start / seconds, np.clip(np.log(np.maximum(compute, 1e-12) / np.maximum(memory, 1e-12)), -6.0, 6.0),
        np.log(np.maximum(shapes["bytes"], 1.0) / gpu.l2)])
    nothing = np.zeros_like(seconds)
    return Physics(seconds, compute, memory, nothing, nothing,
                   np.zeros(len(seconds), dtype=np.intp), features)
