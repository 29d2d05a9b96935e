"""Linear attention as an operation of a model: gated delta networks, which keep a state a sequence and no keys."""

from collections.abc import Iterator

from attrs import frozen

from ksim.compute.graph import Op
from ksim.compute.kernels.causal_conv import ConvLayer, Part
from ksim.compute.kernels.delta_rule import DeltaLayer
from ksim.compute.sizes import Sizes
from ksim.foundation.units import DType
from ksim.specs.deployment import Shard

PARTS: tuple[Part, ...] = ("prompts", "decodes")


@frozen
class AttendLinear:
    """A convolution over W tokens and the gated delta rule: ``tYGe->tGoe``, prompts and decodes each in their kernels.

    Its weights are the convolution's, and two numbers a head that gate it.  vLLM keeps `state` in FP32 where the model
    says so.
    """

    state: DType = DType.FP32
    label: str = "delta"
    parallel: str = "G"

    def parameters(self, sizes: Sizes) -> int:
        return sizes.volume("YGeW") + 2 * sizes.volume("Go")

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.split(self.parallel, shard.tensor)) * DType.BF16.bytes

    def state_per_sequence(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of the matrices of its heads, and of the last W - 1 tokens before the convolution, on one rank."""
        local = sizes.split(self.parallel, shard.tensor)
        kept = local.volume("YGe") * (local.of["W"] - 1) * DType.BF16.bytes
        return local.volume("Goee") * self.state.bytes + kept

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.split(self.parallel, shard.tensor)
        for part in PARTS:
            yield Op(f"conv_{part}", ConvLayer(part, local.volume("YGe"), local.of["W"]))
            yield Op(f"{self.label}_{part}", DeltaLayer(part, local.volume("Go"), local.of["G"], local.of["e"],
                                                        self.state))
