"""Families of kernels: the physics of each, and the columns that it makes of kernels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import asdict, frozen

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import Attention
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.grouped_gemm import GroupedGemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.cost.efficiency import attention, gemm, grouped_gemm, mla, pointwise
from ksim.cost.efficiency.physics import Array, Physics
from ksim.cost.oracles import peak
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu

Shapes = Mapping[str, Array]
#: Constants of a family's physics by name: seconds, clocks or shares of peaks.
Constants = Mapping[str, float]


@frozen
class Family:
    """Kernels of one class: what the physics makes of their columns, and the columns of the kernels.

    `names` lists the efficiencies that speak of a kernel, the one that fits best
    first: what follows it was fitted to other formats or to kernels alike.
    """

    physics: Callable[[Gpu, Shapes, Constants], Physics]
    features: tuple[str, ...]
    launches: tuple[str, ...]
    columns: Callable[[Sequence[Any], Gpu], Shapes]
    names: Callable[[Any], tuple[str, ...]]


def family_of(kernel: Kernel) -> Family | None:
    """The family that prices kernels of this class; None for a class that ksim has no measurements of."""
    return _BY_CLASS.get(type(kernel))


def formats(weights: DType, activations: DType) -> str:
    """What a product's number formats are called: ``bf16``, or ``int4_w4a16`` where the two differ.

    Formats that differ in their scales alone are one, but for FP8 in blocks, which other kernels compute.
    """
    stored, element, operand = weights, weights.element, activations.element
    if element is operand:
        return stored.label if stored is DType.FP8_BLOCK else element.label
    return f"{element.label}_w{8 * element.bytes:.0f}a{8 * operand.bytes:.0f}"


def _attributes(kernels: Sequence[Any], names: Sequence[str]) -> dict[str, Array]:
    table = np.array([[getattr(kernel, name) for name in names] for kernel in kernels], dtype=np.float64)
    return dict(zip(names, table.T, strict=True))


def _gemms(kernels: Sequence[Gemm], gpu: Gpu) -> Shapes:
    table = np.array([(kernel.m, kernel.n, kernel.k, kernel.weights.bytes, kernel.activations.bytes,
                       peak(gpu, kernel.activations), np.inf) for kernel in kernels], dtype=np.float64)
    return dict(zip(("m", "n", "k", "weight_bytes", "activation_bytes", "peak", "footprint"), table.T, strict=True))


_COUNTED = tuple(name for name in attention.COLUMNS if name not in ("cache_bytes", "footprint", "writes"))


def _attentions(kernels: Sequence[Attention], gpu: Gpu) -> Shapes:
    several = len(kernels)
    return {
        **_attributes(kernels, _COUNTED),
        "cache_bytes": np.array([kernel.cache.bytes for kernel in kernels]),
        "footprint": np.full(several, np.inf),  # a step reads the caches of all layers before one again
        "writes": np.zeros(several),
    }


def _grouped_gemms(kernels: Sequence[GroupedGemm], gpu: Gpu) -> Shapes:
    spread = [grouped_gemm.tiles(kernel.loads) for kernel in kernels]
    return {
        **_attributes(kernels, ("n", "k", "tokens")),
        **{name: np.array([each[name] for each in spread]) for name in spread[0]},
        "inputs": np.array([kernel.rows if kernel.inputs is None else kernel.inputs for kernel in kernels], float),
        "weight_bits": np.array([8.0 * kernel.weights.element.bytes for kernel in kernels]),
        "bits": np.array([8.0 * kernel.activations.element.bytes for kernel in kernels]),
        "warm": np.zeros(len(kernels)),
    }


#: What no profile knows is priced like a kernel that moves memory as plainly: one thread block a row.
_PLAIN = "silu_mul"

FAMILIES: Mapping[str, Family] = {
    "gemm": Family(
        lambda gpu, shapes, constants: gemm.physics(gpu, shapes, gemm.Constants(**constants)),
        gemm.FEATURES, gemm.LAUNCHES, _gemms,
        lambda kernel: tuple(dict.fromkeys((
            f"gemm/{formats(kernel.weights, kernel.activations)}", f"gemm/{kernel.activations.element}",
            "gemm/bf16")))),
    "attention": Family(
        lambda gpu, shapes, constants: attention.physics(gpu, shapes, attention.Constants(**constants)),
        attention.FEATURES, attention.LAUNCHES, _attentions,
        lambda kernel: tuple(dict.fromkeys((f"attention/{kernel.cache.label}", "attention/bf16")))),
    "grouped_gemm": Family(
        lambda gpu, shapes, constants: grouped_gemm.physics(gpu, shapes, grouped_gemm.Reach(**constants)),
        grouped_gemm.FEATURES, grouped_gemm.LAUNCHES, _grouped_gemms,
        lambda kernel: tuple(dict.fromkeys((
            f"grouped_gemm/{formats(kernel.weights, kernel.activations)}",
            f"grouped_gemm/{kernel.activations.element}", "grouped_gemm/bf16")))),
    # No model of ksim launches it yet: it has columns of measurements, and none of kernels.
    "mla": Family(lambda gpu, shapes, constants: mla.physics(gpu, shapes, mla.Reach(**constants)),
                  mla.FEATURES, mla.LAUNCHES, lambda kernels, gpu: {}, lambda kernel: ()),
    "pointwise": Family(
        lambda gpu, shapes, constants: pointwise.physics(gpu, shapes, asdict(pointwise.Terms(**constants))),
        pointwise.FEATURES, pointwise.LAUNCHES,
        lambda kernels, gpu: _attributes(kernels, ("rows", "read_bytes", "write_bytes")),
        lambda kernel: (kernel.family, _PLAIN)),
}
_BY_CLASS = {Gemm: FAMILIES["gemm"], Attention: FAMILIES["attention"], GroupedGemm: FAMILIES["grouped_gemm"],
             Pointwise: FAMILIES["pointwise"]}
