"""Qwen3.5's dense models: Qwen3-Next's attention with a gated MLP; the vision part of their configs is left out."""

from ksim.compute import blocks, linear
from ksim.compute.architectures.qwen3_next import attention
from ksim.compute.model import Config, Decoder

__all__ = ["qwen3_5"]


def qwen3_5(config: Config) -> Decoder:
    config = blocks.text(config)
    blocks.only(config, mlp_only_layers=[])
    kinds, mixers = linear.kinds(config), attention(config)
    return blocks.decoder(config, blocks.layers(kinds, lambda kind: blocks.layer(
        mixers[kind], blocks.gated_mlp(config))), tied=False, **linear.sizes(config))
