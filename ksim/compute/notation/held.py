"""Weights that the kernel of another operation reads, too few to change its time."""

from collections.abc import Iterator

from attrs import frozen

from ksim.compute.graph import Op
from ksim.compute.sizes import Sizes
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["Held"]


@frozen
class Held:
    """A tensor of weights that launches nothing, and that every rank has whole: ``Held("E", "router_correction")``."""

    tensor: str
    label: str
    format: DType = DType.FP32

    def parameters(self, sizes: Sizes) -> int:
        return sizes.volume(self.tensor)

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes) * self.format.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        return iter(())
