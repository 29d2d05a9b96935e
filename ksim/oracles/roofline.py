"""The plain roofline: bound by arithmetic or by memory, whichever is slower."""

from collections.abc import Sequence

from attrs import field, frozen, validators

from ksim.compute.kernels import Kernel
from ksim.oracles import Estimate, bounds
from ksim.specs.hardware import Gpu

__all__ = ["Roofline"]


@frozen
class Roofline:
    """`compute` and `memory` are the fractions of the peaks that kernels reach; 1 is the bound itself."""

    compute: float = field(default=1.0, validator=(validators.gt(0), validators.le(1)))
    memory: float = field(default=1.0, validator=(validators.gt(0), validators.le(1)))

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> list[Estimate]:
        return [self.estimate(kernel, gpu) for kernel in kernels]

    def estimate(self, kernel: Kernel, gpu: Gpu) -> Estimate:
        arithmetic, traffic = bounds(kernel, gpu)
        arithmetic, traffic = arithmetic / self.compute, traffic / self.memory
        bound = "compute" if arithmetic > traffic else "memory"
        return Estimate(max(arithmetic, traffic), bound, source="roofline")

    def seconds(self, kernel: Kernel, gpu: Gpu) -> float:
        return self.estimate(kernel, gpu).seconds
