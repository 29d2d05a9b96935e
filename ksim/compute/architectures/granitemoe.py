"""Granite 3's mixtures of experts: Mixtral's layers with the scales of a Granite."""

from ksim.compute import blocks
from ksim.compute.architectures.granite import scaled
from ksim.compute.model import Config, Decoder

__all__ = ["granitemoe"]


def granitemoe(config: Config) -> Decoder:
    layer = blocks.layer(blocks.attention(config), blocks.experts(config))
    return scaled(config, blocks.mixture(config, [layer] * config.need("num_hidden_layers")))
