"""Llama: grouped-query attention and a gated MLP, each after a norm."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["llama"]


def llama(config: Config) -> Decoder:
    return blocks.decoder(config, blocks.layers(blocks.windows(config), lambda window: blocks.layer(
        blocks.attention(config, window), blocks.gated_mlp(config))))
