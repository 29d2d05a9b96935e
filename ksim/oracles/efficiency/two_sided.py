"""Kernels that are priced by their FLOP and bytes alone: a start, and shares of the two peaks.

``seconds = start + (compute^p + memory^p + (steps x step)^p)^(1/p)``.  `steps` are what a kernel does one after the
other, such as the chunks of a recurrence.  Each family has its own constants.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from attrs import evolve, field, frozen, validators

from ksim.compute.kernels import Kernel
from ksim.foundation.units import quantity
from ksim.oracles import peak
from ksim.oracles.efficiency.families import Family, Shapes
from ksim.oracles.efficiency.models import Array, Physics
from ksim.specs.hardware import Gpu

__all__ = ["CONSTANTS", "FAMILIES", "TwoSides", "constants_of", "physics"]

FEATURES = ("start_share", "log_compute_over_memory", "log_bytes_over_l2")
LAUNCHES = ("whole",)


@frozen
class TwoSides:
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
CONSTANTS: Mapping[str, Mapping[str, TwoSides]] = {
    "batched_gemm": {"": TwoSides(start=4.2e-6, compute=0.6, memory=1.0, sharpness=1.8, within=0.3)},
    "index_scores": {"": TwoSides(start=10e-6, compute=1.0, memory=0.67, sharpness=2.0, within=0.3)},
    "sparse_mla": {"": TwoSides(start=54e-6, compute=0.425, memory=1.0, sharpness=8.0, within=0.3)},
    "compressed_mla": {"": TwoSides(start=12e-6, compute=0.425, memory=0.8, sharpness=4.0, within=0.7)},
    "block_sparse": {"": TwoSides(start=12e-6, compute=0.3, memory=0.55, sharpness=2.0, within=0.7)},
    "conv_prompts": {"": TwoSides(start=2.9e-6, compute=0.074, memory=1.0, sharpness=3.75, within=0.25)},
    "conv_decodes": {"": TwoSides(start=1.9e-6, compute=0.028, memory=1.0, sharpness=12.0, within=0.11)},
    "delta_prompts": {
        "hopper": TwoSides(start=8.5e-6, compute=0.434, memory=0.548, sharpness=11.0, step=3.09e-6, within=0.19),
        "blackwell": TwoSides(start=17.1e-6, compute=0.963, memory=0.248, sharpness=12.0, step=2.36e-6, within=0.31),
        "": TwoSides(start=15.6e-6, compute=0.098, memory=1.0, sharpness=3.5, step=1.8e-6, within=0.51)},
    "lora_shrink": {"": TwoSides(start=5e-6, compute=0.3, memory=0.6, sharpness=2.0, within=0.7)},
    "lora_expand": {"": TwoSides(start=4e-6, compute=0.3, memory=0.6, sharpness=2.0, within=0.7)},
    "delta_decodes": {"": TwoSides(start=3.8e-6, compute=0.291, memory=1.0, sharpness=1.2, within=0.2)},
    "kda_prompts": {
        "hopper": TwoSides(start=18.1e-6, compute=1.0, memory=0.456, sharpness=1.29, step=4.44e-6, within=0.16),
        "blackwell": TwoSides(start=16.2e-6, compute=0.2, memory=0.313, sharpness=1.91, step=4.14e-6, within=0.12),
        "": TwoSides(start=15.6e-6, compute=0.098, memory=1.0, sharpness=3.5, step=1.8e-6, within=0.7)},
    "ssd_prompts": {"": TwoSides(start=12e-6, compute=0.3, memory=0.55, sharpness=2.0, within=0.7)},
    "ssd_decodes": {"": TwoSides(start=3.8e-6, compute=0.291, memory=1.0, sharpness=1.2, within=0.4)},
    "scan_prompts": {"": TwoSides(start=3e-6, compute=0.3, memory=0.8, sharpness=2.0, within=0.7)},
    "scan_decodes": {"": TwoSides(start=3.8e-6, compute=0.3, memory=1.0, sharpness=1.2, within=0.4)},
}
#: Architectures that the constants for any were fitted to, and how much wider intervals are on others.
FITTED, WIDER = {"hopper", "blackwell"}, 4.0


def constants_of(family: str, gpu: Gpu) -> TwoSides:
    """The constants of *family* on *gpu*, whose interval is wider where they come from other architectures."""
    known = CONSTANTS[family]
    constants = known.get(gpu.architecture) or known[""]
    alike = gpu.architecture in FITTED or len(known) > 1
    return constants if alike else evolve(constants, within=WIDER * constants.within)


def physics(gpu: Gpu, shapes: Mapping[str, Array], constants: TwoSides) -> Physics:
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


def _sides(kernels: Sequence[Kernel], gpu: Gpu) -> Shapes:
    table = np.array([(work.flops, work.bytes, peak(gpu, work.dtype), 0.0)
                      for kernel in kernels for work in [kernel.work]], dtype=np.float64)
    return dict(zip(("flops", "bytes", "peak", "steps"), table.T, strict=True))


def _recurrences(kernels: Sequence[Any], gpu: Gpu) -> Shapes:
    return {**_sides(kernels, gpu), "steps": np.array([kernel.steps(gpu.sms) for kernel in kernels])}


def _gathers(kernels: Sequence[Any], gpu: Gpu) -> Shapes:
    """Heads fill up whole tiles, and every query gathers its own keys, at the memory's pace wherever they are.

    Data-centre Blackwell's matrix instructions have twice the rows: 64 heads take it as long as 128.
    """
    tile = kernels[0].tile_heads * (2 if gpu.architecture == "blackwell" else 1)
    shapes = dict(_sides(kernels, gpu))
    shapes["flops"] = shapes["flops"] * [ceil(kernel.heads / tile) * tile / kernel.heads for kernel in kernels]
    shapes["bytes"] = np.array([kernel.gathered + kernel.work.writes for kernel in kernels])
    return shapes


#: Families whose columns are not the plain sides.
_COLUMNS: Mapping[str, Callable[[Sequence[Any], Gpu], Shapes]] = {
    "delta_prompts": _recurrences, "delta_decodes": _recurrences, "kda_prompts": _recurrences, "sparse_mla": _gathers,
    "compressed_mla": _gathers}


def _family(name: str) -> Family:
    return Family(lambda gpu, shapes, constants: physics(gpu, shapes, evolve(constants_of(name, gpu), **constants)),
                  FEATURES, LAUNCHES, _COLUMNS.get(name, _sides), lambda kernel: (name,),
                  lambda gpu: constants_of(name, gpu).within)


FAMILIES = {name: _family(name) for name in CONSTANTS}
