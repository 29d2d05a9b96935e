"""Families of kernels: the physics of each, and the columns that it makes of kernels."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from attrs import asdict, evolve, frozen

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import COUNTS, Attention, BlockSparseAttention
from ksim.compute.kernels.basic import BatchedGemm, Gemm, GroupedGemm, LoraGemm, Pointwise
from ksim.compute.kernels.mla import (
    TILE_HEADS,
    CompressedAttention,
    IndexScores,
    LatentAttention,
    SparseLatentAttention,
)
from ksim.compute.kernels.states import CausalConv, DeltaRule, SelectiveScan, StateSpace
from ksim.foundation.units import DType
from ksim.oracles import peak
from ksim.oracles.efficiency import attention, attention_grids, drawn, gemm, grouped_gemm, mla, pointwise
from ksim.oracles.efficiency.models import Array, Physics
from ksim.specs.hardware import Gpu

Shapes = Mapping[str, Array]
#: Constants of a family's physics by name: seconds, clocks or shares of peaks.
Constants = Mapping[str, float]


@frozen
class Family:
    """Kernels of one class: what the physics makes of their columns, and the columns of the kernels.

    `names` lists the efficiencies that speak of a kernel, the one that fits best
    first: what follows it was fitted to other formats or to kernels alike.  Where no
    profile has any of them, physics with its own constants stands, if nine of ten
    kernels are known to be `within` so much of it in log time.  `sweep` makes columns of
    the kernel of a `KernelSweep`.
    """

    physics: Callable[[Gpu, Shapes, Constants], Physics]
    features: tuple[str, ...]
    launches: tuple[str, ...]
    columns: Callable[[Sequence[Any], Gpu], Shapes]
    names: Callable[[Any], tuple[str, ...]]
    within: Callable[[Gpu], float] | None = None
    sweep: Callable[[Any, Gpu], Shapes] | None = None


def family_of(kernel: Kernel) -> Family | None:
    """The family that prices kernels of this class; None for a class that ksim has no measurements of."""
    if isinstance(kernel, _PHASED):
        return FAMILIES[kernel.family]
    return _BY_CLASS.get(type(kernel))


def formats(weights: DType, activations: DType) -> str:
    """What a product's number formats are called: ``bf16``, or ``int4_w4a16`` where the two differ.

    Formats that differ in their scales alone are one, but for FP8 in blocks, which other kernels compute.
    """
    stored, element, operand = weights, weights.element, activations.element
    if element is operand:
        return stored.label if stored is DType.FP8_BLOCK else element.label
    return f"{element.label}_w{8 * element.bytes:.0f}a{8 * operand.bytes:.0f}"


def _products(family: str, kernel: Any) -> tuple[str, ...]:
    """The efficiencies of a product: of its formats, of those that it multiplies, of FP8 for INT8, and of BF16.

    vLLM's CUTLASS and Triton kernels for INT8 are those for FP8.
    """
    element = kernel.activations.element
    alike = ("fp8",) if element is DType.INT8 else ()
    return tuple(dict.fromkeys(f"{family}/{name}" for name in (
        formats(kernel.weights, kernel.activations), element.label, *alike, "bf16")))


def _attributes(kernels: Sequence[Any], names: Sequence[str]) -> dict[str, Array]:
    table = np.array([[getattr(kernel, name) for name in names] for kernel in kernels], dtype=np.float64)
    return dict(zip(names, table.T, strict=True))


#: Columns of a dense product, and of a kernel that only moves memory.
_PRODUCT = ("m", "n", "k", "weight_bytes", "activation_bytes", "peak", "footprint")
_MOVED = ("rows", "read_bytes", "write_bytes", "cold_bytes")


def _gemms(kernels: Sequence[Gemm], gpu: Gpu) -> Shapes:
    table = np.array([(kernel.m, kernel.n, kernel.k, kernel.weights.bytes, kernel.activations.bytes,
                       peak(gpu, kernel.activations), np.inf) for kernel in kernels], dtype=np.float64)
    return dict(zip(_PRODUCT, table.T, strict=True))


def _gemm_sweep(kernel: Any, gpu: Gpu) -> Shapes:
    table = np.empty((len(_PRODUCT), len(kernel.m)))
    table[0], table[1], table[2] = kernel.m, kernel.n, kernel.k
    table[3:] = [[kernel.weights.bytes], [kernel.activations.bytes], [peak(gpu, kernel.activations)], [np.inf]]
    return dict(zip(_PRODUCT, table, strict=True))


def _pointwise_sweep(kernel: Any, gpu: Gpu) -> Shapes:
    return {name: np.broadcast_to(np.asarray(getattr(kernel, name), dtype=np.float64), np.shape(kernel.read_bytes))
            for name in _MOVED}


_COUNTED = tuple(name for name in attention.COLUMNS if name not in ("cache_bytes", "footprint", "writes"))


def _attentions(kernels: Sequence[Attention], gpu: Gpu) -> Shapes:
    return {
        **_attributes(kernels, _COUNTED),
        "cache_bytes": np.array([kernel.cache.bytes for kernel in kernels]),
        "footprint": np.full(len(kernels), np.inf),  # a step reads the caches of all layers before one again
        "writes": np.zeros(len(kernels)),
    }


def _attention_sweep(kernel: Any, gpu: Gpu) -> Shapes:
    """What is the same for all kernels is a number."""
    counts = {name: np.asarray(getattr(kernel, name), dtype=np.float64) for name in COUNTS}
    alone = not counts["chunks"].any()
    same: Any = {"heads": float(kernel.heads), "kv_heads": float(kernel.kv_heads), "head_dim": float(kernel.head_dim),
                 "cache_bytes": float(kernel.cache.bytes), "footprint": np.inf, "writes": 0.0}
    return {**{name: 0.0 if alone and name.startswith("chunk") else column for name, column in counts.items()}, **same}


def _grouped_gemms(kernels: Sequence[GroupedGemm], gpu: Gpu) -> Shapes:
    spread = [grouped_gemm.tiles(kernel.expert_rows) for kernel in kernels]
    return {
        **_attributes(kernels, ("n", "k", "tokens")),
        **{name: np.array([tiles[name] for tiles in spread]) for name in spread[0]},
        "inputs": np.array([kernel.rows if kernel.inputs is None else kernel.inputs for kernel in kernels], float),
        "weight_bits": np.array([8.0 * kernel.weights.element.bytes for kernel in kernels]),
        "bits": np.array([8.0 * kernel.activations.element.bytes for kernel in kernels]),
        "warm": np.zeros(len(kernels)),
    }


def _latents(kernels: Sequence[LatentAttention], gpu: Gpu) -> Shapes:
    """As of equal sequences: as many queries, keys and pairs in all."""
    table = np.array([(
        kernel.sequences, kernel.queries / kernel.sequences, kernel.pairs / kernel.queries, kernel.heads,
        kernel.form == "absorbed", 8.0 * kernel.cache.bytes, kernel.content, kernel.rotary, kernel.value, kernel.latent,
    ) for kernel in kernels], dtype=np.float64)
    names = ("batch", "query", "length", "heads", "generation", "cache_bits", "content", "rotary", "value", "latent")
    shapes = dict(zip(names, table.T, strict=True))
    shapes["length"] = shapes["length"] + (shapes["query"] - 1.0) / 2.0  # the last query sees more than the mean one
    return shapes


def _two_sided(name: str, columns: Callable[[Sequence[Any], Gpu], Shapes]) -> Family:
    return Family(
        lambda gpu, shapes, constants: drawn.physics(
            gpu, shapes, evolve(drawn.constants_of(name, gpu), **constants)),
        drawn.FEATURES, drawn.LAUNCHES, columns, lambda kernel: (name,),
        lambda gpu: drawn.constants_of(name, gpu).within)


def _sides(kernels: Sequence[Kernel], gpu: Gpu) -> Shapes:
    table = np.array([(work.flops, work.bytes, peak(gpu, work.dtype), 0.0)
                      for kernel in kernels for work in [kernel.work]], dtype=np.float64)
    return dict(zip(("flops", "bytes", "peak", "steps"), table.T, strict=True))


def _recurrences(kernels: Sequence[DeltaRule], gpu: Gpu) -> Shapes:
    return {**_sides(kernels, gpu), "steps": np.array([kernel.steps(gpu.sms) for kernel in kernels])}


def _gathers(kernels: Sequence[SparseLatentAttention], gpu: Gpu) -> Shapes:
    """Heads fill up whole tiles, and every query gathers its own keys, at the memory's pace wherever they are.

    Data-centre Blackwell's matrix instructions have twice the rows: 64 heads take it as long as 128.
    """
    tile = TILE_HEADS * (2 if gpu.architecture == "blackwell" else 1)
    shapes = dict(_sides(kernels, gpu))
    shapes["flops"] = shapes["flops"] * [ceil(kernel.heads / tile) * tile / kernel.heads for kernel in kernels]
    shapes["bytes"] = np.array([kernel.gathered + kernel.work.writes for kernel in kernels])
    return shapes


#: What no profile knows is priced like a kernel that moves memory as plainly: one thread block a row.
_PLAIN = "silu_mul"

FAMILIES: Mapping[str, Family] = {
    "gemm": Family(
        lambda gpu, shapes, constants: gemm.physics(gpu, shapes, gemm.Constants(**constants)),
        gemm.FEATURES, gemm.LAUNCHES, _gemms, lambda kernel: _products("gemm", kernel), sweep=_gemm_sweep),
    "attention": Family(
        lambda gpu, shapes, constants: attention.physics(gpu, shapes, attention_grids.Constants(**constants)),
        attention.FEATURES, attention.LAUNCHES, _attentions,
        lambda kernel: tuple(dict.fromkeys((f"attention/{kernel.cache.label}", "attention/bf16"))),
        sweep=_attention_sweep),
    "grouped_gemm": Family(
        lambda gpu, shapes, constants: grouped_gemm.physics(gpu, shapes, grouped_gemm.Constants(**constants)),
        grouped_gemm.FEATURES, grouped_gemm.LAUNCHES, _grouped_gemms,
        lambda kernel: _products("grouped_gemm", kernel)),
    "mla": Family(lambda gpu, shapes, constants: mla.physics(gpu, shapes, mla.Constants(**constants)),
                  mla.FEATURES, mla.LAUNCHES, _latents,
                  lambda kernel: tuple(dict.fromkeys((f"mla/{kernel.cache.label}", "mla/bf16")))),
    "pointwise": Family(
        lambda gpu, shapes, constants: pointwise.physics(gpu, shapes, asdict(pointwise.Terms(**constants))),
        pointwise.FEATURES, pointwise.LAUNCHES,
        lambda kernels, gpu: _attributes(kernels, _MOVED),
        lambda kernel: (kernel.family, _PLAIN), sweep=_pointwise_sweep),
    "batched_gemm": _two_sided("batched_gemm", _sides),
    **{name: _two_sided(name, _sides) for name in (
        "index_scores", "conv_prompts", "conv_decodes", "ssd_prompts", "ssd_decodes", "scan_prompts", "scan_decodes",
        "lora_shrink", "lora_expand", "block_sparse")},
    **{name: _two_sided(name, _recurrences) for name in ("delta_prompts", "delta_decodes", "kda_prompts")},
    **{name: _two_sided(name, _gathers) for name in ("sparse_mla", "compressed_mla")},
}
#: Classes of two kernels each, for prompts and for decodes.
_PHASED = (DeltaRule, CausalConv, StateSpace, SelectiveScan, LoraGemm)
_BY_CLASS = {
    Gemm: FAMILIES["gemm"], Attention: FAMILIES["attention"], GroupedGemm: FAMILIES["grouped_gemm"],
    LatentAttention: FAMILIES["mla"], Pointwise: FAMILIES["pointwise"], BatchedGemm: FAMILIES["batched_gemm"],
    IndexScores: FAMILIES["index_scores"], SparseLatentAttention: FAMILIES["sparse_mla"],
    CompressedAttention: FAMILIES["compressed_mla"], BlockSparseAttention: FAMILIES["block_sparse"]}
