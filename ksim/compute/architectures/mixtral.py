"""Mixtral: Llama's layers with a mixture of experts for an MLP."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["mixtral"]


def mixtral(config: Config) -> Decoder:
    return blocks.mixture(config, blocks.layers(blocks.windows(config), lambda window: blocks.layer(
        blocks.attention(config, window), blocks.experts(config))))
