"""Layers that keep a state of each sequence in place of a cache.

They are linear attention (gated delta networks), Mamba, Mamba-2, lightning attention and convolutions.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from attrs import frozen

from ksim.compute import blocks
from ksim.compute.graph import Op
from ksim.compute.kernels import PHASES, OverBatch
from ksim.compute.kernels.states import CausalConv, DeltaRule, SelectiveScan, StateSpace
from ksim.compute.model import Config
from ksim.compute.model_ops import communicate, op, pointwise
from ksim.compute.notation.pointwise import Elementwise
from ksim.compute.sizes import Sizes, of_groups
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.shard import STATE_DTYPES, Shard

__all__ = ["AttendLightning", "AttendMamba", "AttendMamba2", "Convolve", "SharedSquares", "ShortConvolution", "mamba",
           "mamba2", "mamba2_sizes", "AttendLinear", "state_format"]


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

    attends: ClassVar[str] = "linear attention"
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
        """The formats of the convolution's tokens and of the matrices, FP32 where these decay by channel."""
        conv, state = shard.precision.states(self.state)
        return conv, DType.FP32 if self.by_channel else state

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local, (_, state) = sizes.split(self.parallel, shard.tensor), self._formats(shard)
        for phase in PHASES:
            yield Op(f"conv_{phase}", OverBatch(CausalConv(phase, local.volume("YGe"), local.of["W"])))
            yield Op(f"{self.label}_{phase}", OverBatch(DeltaRule(
                phase, local.volume("Go"), local.of["G"], local.of["e"], state, self.by_channel)))


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


@frozen
class AttendMamba2:
    """Mamba-2: a convolution over W tokens and matrices that decay, ``tGX->tGoe``; prompts have kernels of their own.

    Its weights are those of the convolution, with a `bias` or without, and three numbers a head.  Prompts are computed
    in chunks of so many tokens.  `state` is the format of the matrices unless the engine has another; without
    one, that of the convolution's tokens.
    """

    chunk: int
    bias: bool = True
    state: DType | None = None
    label: str = "ssd"
    parallel: str = "G"

    attends: ClassVar[str] = "Mamba-2"
    checkpoint: ClassVar[int] = 1  # prompts keep the state after any token (vLLM's mamba_mixer2)

    def parameters(self, sizes: Sizes) -> int:
        return sizes.volume("GX") * (sizes.of["W"] + self.bias) + 3 * sizes.volume("Go")

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.split(self.parallel, shard.tensor)) * DType.BF16.bytes

    def state_per_sequence(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes on one rank: a matrix a head, and the last W - 1 tokens before the convolution and its drafts."""
        local, conv, state = sizes.split(self.parallel, shard.tensor), *shard.precision.states(self.state)
        kept = local.of["W"] - 1 + shard.drafts
        return local.volume("GoeN") * state.bytes + local.volume("GX") * kept * conv.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local, (_, state) = sizes.split(self.parallel, shard.tensor), shard.precision.states(self.state)
        for phase in PHASES:
            yield Op(f"conv_{phase}", OverBatch(CausalConv(phase, local.volume("GX"), local.of["W"])))
            yield Op(f"{self.label}_{phase}", OverBatch(StateSpace(
                phase, heads=local.volume("Go"), groups=local.of["G"], size=local.of["e"], states=local.of["N"],
                chunk=self.chunk, state=state)))


@frozen
class SharedSquares:
    """Squares of a norm's inputs over a single group of heads, summed up by the ranks that share it; one rank has none.

    vLLM: Mixer2RMSNormGated (mamba_mixer2.py), and MiniMaxText01RMSNormTP, whose norm is over all heads.
    """

    label: str = "squares"
    always: bool = False

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        if shard.tensor > 1 and (self.always or sizes.of["G"] == 1):
            for operation in SQUARES:
                yield from operation.lower(sizes, shard)


SQUARES = (pointwise("rms_norm", "tGoe->tA", "squares", parallel="G", writes="fp32"),
           communicate("all_reduce", "tA", "squares_all_reduce", "fp32"))


def mamba2(chunk: int, *, bias: bool = False, conv_bias: bool = True, norm: bool = True, scaled: bool = False,
           state: DType | None = None) -> blocks.Operations:
    """A Mamba-2 mixer, from the normed hidden state to the output projection.

    Its output is gated, and with *norm* normed over each group.  The first projection is *scaled* by a vector in a
    kernel of its own, or not at all.
    """
    gated: tuple[Elementwise | SharedSquares, ...] = (
        SharedSquares(), pointwise("rms_norm_gated", "tGoe,tGoe->tGoe", "mamba_norm", parallel="G", scale="Goe"))
    if not norm:
        gated = (pointwise("silu_mul", "tGoe,tGoe->tGoe", "mamba_gate", parallel="G"),)
    return (
        op("tm,mGU->tGU", "in_proj", parallel="G", bias=bias, part="attention_inputs"),
        *((pointwise("scale", "tGU->tGU", "in_scale", parallel="G"),) if scaled else ()),
        AttendMamba2(chunk, conv_bias, state),
        *gated,
        op("tGoe,Goem->tm", "out_proj", parallel="G", bias=bias, part="attention"),
    )


@frozen
class Convolve:
    """Mamba's convolution of its channels over W tokens, ``tI->tI``; the state that it keeps counts in the scan."""

    bias: bool = True
    label: str = "conv"
    parallel: str = "I"

    part: ClassVar[str] = "attention"

    def parameters(self, sizes: Sizes) -> int:
        return sizes.of["I"] * (sizes.of["W"] + self.bias)

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.split(self.parallel, shard.tensor)) * DType.BF16.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.split(self.parallel, shard.tensor)
        for phase in PHASES:
            yield Op(f"{self.label}_{phase}", OverBatch(CausalConv(phase, local.of["I"], local.of["W"])))


@frozen
class ShortConvolution(Convolve):
    """A convolution of channels over W tokens in place of attention, ``tI->tI``, which keeps the last W - 1 (LFM2).

    (vllm/model_executor/layers/mamba/short_conv.py)
    """

    attends: ClassVar[str] = "short convolution"
    checkpoint: ClassVar[int] = 1

    def state_per_sequence(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of the last W - 1 tokens and of drafted ones on one rank."""
        local = sizes.split(self.parallel, shard.tensor)
        return local.of["I"] * (local.of["W"] - 1 + shard.drafts) * shard.precision.states()[0].bytes


@frozen
class AttendMamba:
    """Mamba's selective scan, ``tI,tN,tN->tI``; prompts and decodes have kernels each.

    Its weights are N decays, a time step's bias and a factor of the input for each channel.
    """

    label: str = "scan"
    parallel: str = "I"

    attends: ClassVar[str] = "Mamba"

    def parameters(self, sizes: Sizes) -> int:
        return sizes.volume("IN") + 2 * sizes.of["I"]

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.split(self.parallel, shard.tensor)) * DType.BF16.bytes

    def state_per_sequence(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes on one rank: N states a channel, and the last W - 1 tokens before the convolution."""
        local, conv, state = sizes.split(self.parallel, shard.tensor), *shard.precision.states()
        return local.of["I"] * (local.of["N"] * state.bytes + (local.of["W"] - 1) * conv.bytes)

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local, (_, state) = sizes.split(self.parallel, shard.tensor), shard.precision.states()
        for phase in PHASES:
            yield Op(f"{self.label}_{phase}", OverBatch(SelectiveScan(phase, local.of["I"], local.of["N"], state)))


def mamba(*, bias: bool = False, conv_bias: bool = True, norms: bool = False) -> blocks.Operations:
    """A Mamba mixer, from the normed hidden state to the output projection; vLLM quantizes none of it.

    Time step and both vectors are projected from the convolved channels, and have *norms* of their own or not.
    """
    inner = (
        pointwise("rms_norm", "tR->tR", "dt_norm", scale="R"), pointwise("rms_norm", "tN->tN", "b_norm", scale="N"),
        pointwise("rms_norm", "tN->tN", "c_norm", scale="N")) if norms else ()
    return (
        op("tm,mgI->tgI", "in_proj", parallel="I", bias=bias, quantized=False, part="attention"),
        Convolve(conv_bias),
        op("tI,IQ->tQ", "x_proj", parallel="I", quantized=False, part="attention"),
        *inner,
        op("tR,RI->tI", "dt_proj", parallel="I", quantized=False, part="attention"),
        AttendMamba(),
        op("tI,Im->tm", "out_proj", parallel="I", bias=bias, quantized=False, part="attention"),
    )


@frozen
class AttendLightning:
    """Lightning attention: a matrix a head, which decays by a constant, ``tGe,tGe,tGe->tGe``."""

    chunk: int = 256
    label: str = "lightning"
    parallel: str = "G"

    attends: ClassVar[str] = "lightning attention"

    def state_per_sequence(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of a matrix a head, in vLLM in the format of `mamba_cache_dtype`."""
        return sizes.split(self.parallel, shard.tensor).volume("Gee") * shard.precision.states()[0].bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local, (state, _) = sizes.split(self.parallel, shard.tensor), shard.precision.states()
        heads, size = local.of["G"], local.of["e"]
        for phase in PHASES:
            yield Op(f"{self.label}_{phase}", OverBatch(StateSpace(phase, heads, heads, size, size, self.chunk, state)))


def mamba2_sizes(config: Config, *, heads: str, size: str, groups: str, states: str, width: str, inner: int = 0
                 ) -> dict[str, int]:
    """The sizes of Mamba-2 by the names that a family has for them; heads share out *inner* channels, if that is given.

    Raises ConfigError where they do not, or where groups do not share out heads.
    """
    count, shared = config.need(heads), config.need(groups, 1)
    auto = inner // count if config.value(size) in (None, "auto") else 0
    each = auto or config.need(size)
    if inner and count * each != inner:
        raise ConfigError(f"{config.name}: {size}", f"{count} heads of {each} are not the {inner} channels of Mamba-2")
    if count % shared:
        raise ConfigError(f"{config.name}: {groups}", f"{shared} does not divide {count} heads")
    return {**of_groups(shared, count // shared, each, config.need(states)), "W": config.need(width, 4), "A": 1}
