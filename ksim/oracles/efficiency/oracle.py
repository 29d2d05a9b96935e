"""An oracle that prices kernels by profiles: what `measured` and `learned` have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.oracles import CompiledAttention, Estimate, Estimates
from ksim.oracles.efficiency.profiled import Profiled
from ksim.specs.hardware import Gpu

__all__ = ["ProfileOracle"]


class ProfileOracle(ABC):
    """Says what `prices` says of kernels on a GPU."""

    @abstractmethod
    def prices(self, gpu: Gpu) -> Profiled:
        """What prices kernels on *gpu*; raises ConfigError where there is no profile for it."""

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> Estimates:
        """Price all of *kernels* at once, which is faster than one by one."""
        return self.prices(gpu).estimates(kernels, gpu)

    def estimate(self, kernel: Kernel, gpu: Gpu) -> Estimate:
        return self.estimates([kernel], gpu)[0]

    def seconds(self, kernel: Kernel, gpu: Gpu) -> float:
        return self.estimate(kernel, gpu).seconds

    def compile_attention(self, layer: AttentionLayer, gpu: Gpu) -> CompiledAttention | None:
        """None in a class that has `estimates` of its own, which what is compiled here would not follow."""
        if type(self).estimates is not ProfileOracle.estimates:
            return None
        return self.prices(gpu).compile_attention(layer, gpu)
