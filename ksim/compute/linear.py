"""Linear attention (gated delta networks): its operation, the layer around it, its sizes, and which layers have it."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from attrs import frozen

from ksim.compute import blocks
from ksim.compute.graph import Op
from ksim.compute.kernels import PHASES
from ksim.compute.kernels.causal_conv import ConvLayer
from ksim.compute.kernels.delta_rule import DeltaLayer
from ksim.compute.model import Config
from ksim.compute.model_ops import op, pointwise
from ksim.compute.sizes import Sizes
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.shard import STATE_DTYPES, Shard

#: What `layer_types` calls layers of linear attention.
LINEAR = "linear_attention"


@frozen
class AttendLinear:
    """A convolution over W tokens and the gated delta rule, ``tYGe->tGoe``; prompts and decodes have kernels each.

    Its weights are those of the convolution, and two numbers a head for the gates, or where matrices decay `by_channel`
    one a head and one a channel.  `state` is the format of a
    sequence's matrices unless the engine has another.
    """

    state: DType | None = DType.FP32
    label: str = "delta"
    parallel: str = "G"
    by_channel: bool = False

    checkpoint: ClassVar[int] = 64  # prompts keep the state after so many tokens (FlashInfer's kernels)

    def parameters(self, sizes: Sizes) -> int:
        return sizes.volume("YGeW") + sizes.volume("Go") + sizes.volume("Goe" if self.by_channel else "Go")

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.split(self.parallel, shard.tensor)) * DType.BF16.bytes

    def state_per_sequence(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes on one rank: a matrix a head, and the last W - 1 tokens before the convolution and its drafts."""
        kept = sizes.of["W"] - 1 + shard.drafts
        local, (conv, state) = sizes.split(self.parallel, shard.tensor), self._formats(shard)
        return local.volume("Goee") * state.bytes + local.volume("YGe") * kept * conv.bytes

    def _formats(self, shard: Shard) -> tuple[DType, DType]:
        """Of the convolution's tokens and of the matrices, which are in FP32 where they decay by channel."""
        conv, state = shard.precision.states(self.state)
        return conv, DType.FP32 if self.by_channel else state

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local, (_, state) = sizes.split(self.parallel, shard.tensor), self._formats(shard)
        for phase in PHASES:
            yield Op(f"conv_{phase}", ConvLayer(phase, local.volume("YGe"), local.of["W"]))
            yield Op(f"{self.label}_{phase}", DeltaLayer(phase, local.volume("Go"), local.of["G"], local.of["e"],
                                                        state, self.by_channel))


def attention(config: Config) -> blocks.Operations:
    """A gated delta network, from the normed hidden state to the output projection."""
    return (
        op("tm,mZGe->tZGe", "qkvz", parallel="G", part="attention_inputs"),
        op("tm,mgGo->tgGo", "ba", parallel="G", quantized=False),
        AttendLinear(state_format(config, "mamba_ssm_dtype")),
        pointwise("rms_norm_gated", "tGoe,tGoe->tGoe", "delta_norm", parallel="G", scale="e"),
        op("tGoe,Goem->tm", "o_proj", parallel="G", part="attention"),
    )


def sizes(config: Config) -> dict[str, int]:
    """The sizes of linear attention, by their usual names in config.json."""
    keys, values = config.need("linear_num_key_heads"), config.need("linear_num_value_heads")
    size = config.need("linear_key_head_dim")
    if config.need("linear_value_head_dim") != size:
        raise ConfigError(f"{config.name}: linear_value_head_dim", f"expected {size}, as linear_key_head_dim is")
    if values % keys:
        raise ConfigError(f"{config.name}: linear_num_key_heads", f"{keys} does not divide {values} value heads")
    group = values // keys
    return {"G": keys, "o": group, "e": size, "Z": 2 + 2 * group, "Y": 2 + group, "A": 1,
            "W": config.need("linear_conv_kernel_dim")}


def state_format(config: Config, key: str, default: str = "auto") -> DType | None:
    """The format of states under *key*, which is *default* where the config has none; None is for "auto"."""
    name = config.get(key, default)
    if name not in STATE_DTYPES:
        raise ConfigError(f"{config.name}: {key}", f"{name!r} is none of {', '.join(STATE_DTYPES)}")
    return STATE_DTYPES[name]


def kinds(config: Config) -> Sequence[str]:
    """Which layers have `linear_attention` and which `full_attention`: by `layer_types`, or every few of them full."""
    layers, every = config.need("num_hidden_layers"), config.need("full_attention_interval", 4)
    default = [LINEAR if (layer + 1) % every else blocks.FULL for layer in range(layers)]
    return blocks.layer_types(config, default, (LINEAR, blocks.FULL))
