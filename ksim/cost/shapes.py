"""The shapes of many kernels, as the log keeps them."""

from ksim.compute.kernels.sweep import KernelSweep
from ksim.flow.shapes import Shapes

__all__ = ["shapes_of"]


def shapes_of(sweep: KernelSweep) -> Shapes:
    """How the kernels of *sweep* print: a text with columns of numbers, where their class has such."""
    if hasattr(sweep.kernel, "printed"):
        template, numbers = sweep.kernel.printed
        return Shapes.numbered(template, len(sweep), numbers)
    return Shapes.of(sweep.shapes())
