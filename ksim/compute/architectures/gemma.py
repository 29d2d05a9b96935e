"""Gemma: a tied Llama with heads larger than its hidden size, and an embedding that is scaled."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["gemma"]


def gemma(config: Config) -> Decoder:
    layer = blocks.layer(blocks.attention(config), blocks.gated_mlp(config))
    decoder = blocks.decoder(config, [layer] * config.need("num_hidden_layers"), tied=True)
    return evolve(decoder, embedding=blocks.embedding(scaled=True))
