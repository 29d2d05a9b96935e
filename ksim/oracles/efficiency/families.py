"""Families of kernels: the columns that a family makes of its kernels, and the physics that prices these columns.

A family is the `FAMILY`, or one of the `FAMILIES`, of a module of this folder, which is imported when a kernel of it is
priced.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from attrs import frozen

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.basic import Pointwise
from ksim.foundation.units import DType
from ksim.oracles.efficiency.models import Array, Physics
from ksim.specs.hardware import Gpu

Shapes = Mapping[str, Array]
#: Heights of a tile of vLLM's grouped GEMM.
HEIGHTS = (16, 32, 64, 128)
#: Constants of a family's physics by name: seconds, clocks or shares of peaks.
Constants = Mapping[str, float]


@frozen
class Family:
    """Kernels of one class: `columns` makes columns of them, and `physics` prices these.

    `names` lists the efficiencies that may price a kernel.  The first was fitted to such kernels, the others to other
    formats or to kernels alike.  Where a profile has none of them, the physics is used with its own constants, if
    nine of ten kernels are known to lie `within` so much of it in log time.  `sweep` makes columns of the kernel of a
    `KernelSweep`.  `inputs` are the names of the columns, where a calibration asks for them.
    """

    physics: Callable[[Gpu, Shapes, Constants], Physics]
    features: tuple[str, ...]
    launches: tuple[str, ...]
    columns: Callable[[Sequence[Any], Gpu], Shapes]
    names: Callable[[Any], tuple[str, ...]]
    within: Callable[[Gpu], float] | None = None
    sweep: Callable[[Any, Gpu], Shapes] | None = None
    inputs: tuple[str, ...] = ()


#: Families that have a module of their own; the others are in `two_sided`.
_ALONE = ("gemm", "attention", "grouped_gemm", "mla", "pointwise")


@cache
def family(name: str) -> Family:
    """The family called *name*; raises KeyError where there is none."""
    module: Any = import_module(f"ksim.oracles.efficiency.{name if name in _ALONE else 'two_sided'}")
    found: Family = module.FAMILY if name in _ALONE else module.FAMILIES[name]
    return found


@cache
def _of_class(cls: type[Kernel], name: str) -> Family | None:
    if issubclass(cls, Pointwise):
        return family("pointwise")
    try:
        return family(name) if cls.__module__.startswith("ksim.compute.kernels.") else None
    except KeyError:
        return None


def family_of(kernel: Kernel) -> Family | None:
    """The family that prices *kernel*; None for a class that is not ksim's own, or that nobody knows constants of."""
    return _of_class(type(kernel), kernel.family)


def formats(weights: DType, activations: DType) -> str:
    """The name of a product's number formats: ``bf16``, or ``int4_w4a16`` where weights and activations differ.

    Formats that differ in their scales alone are one, but for FP8 in blocks, which other kernels compute.
    """
    stored, element, operand = weights, weights.element, activations.element
    if element is operand:
        return stored.label if stored is DType.FP8_BLOCK else element.label
    return f"{element.label}_w{8 * element.bytes:.0f}a{8 * operand.bytes:.0f}"


def product_names(family: str, kernel: Any) -> tuple[str, ...]:
    """The efficiencies of a product: of its formats, of those that it multiplies, of FP8 for INT8, and of BF16.

    vLLM's CUTLASS and Triton kernels for INT8 are those for FP8.
    """
    element = kernel.activations.element
    alike = ("fp8",) if element is DType.INT8 else ()
    return tuple(dict.fromkeys(f"{family}/{name}" for name in (
        formats(kernel.weights, kernel.activations), element.label, *alike, "bf16")))


def attributes(kernels: Sequence[Any], names: Sequence[str]) -> dict[str, Array]:
    """The attributes *names* of *kernels*, a column each."""
    table = np.array([[getattr(kernel, name) for name in names] for kernel in kernels], dtype=np.float64)
    return dict(zip(names, table.T, strict=True))


def tiles(loads: Sequence[tuple[int, float]]) -> dict[str, float]:
    """The columns that say how *loads*, (rows, experts that have so many), spread: see `physics` of `grouped_gemm`."""
    busy = [(rows, experts) for rows, experts in loads if rows]
    return {
        "rows": float(sum(rows * experts for rows, experts in busy)),
        "active": float(sum(experts for _, experts in busy)),
        "largest": float(max((rows for rows, _ in busy), default=0)),
        **{f"tiles{height}": float(sum(-(-rows // height) * experts for rows, experts in busy)) for height in HEIGHTS},
    }
