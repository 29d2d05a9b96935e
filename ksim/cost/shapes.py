"""The shapes of many kernels, as the log keeps them."""

from typing import Any

from ksim.compute.kernels.attention import Attention
from ksim.compute.kernels.sweep import KernelSweep
from ksim.flow.shapes import Shapes

__all__ = ["shapes_of"]


def shapes_of(sweep: KernelSweep) -> Shapes:
    """How the kernels of *sweep* print."""
    kernel: Any = sweep.kernel
    if isinstance(kernel, Attention):
        return Shapes.numbered(kernel.template, kernel.sequences, kernel.queries, kernel.keys)
    return Shapes.of(sweep.shapes())
