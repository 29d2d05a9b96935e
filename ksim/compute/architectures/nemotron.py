"""Nemotron-4 and Minitron: LayerNorms, whose weights are stored less 1, and an MLP of squared ReLU without a gate.

Rotary embeddings of half of a head are taken to move as much as those of all of it.
"""

from attrs import evolve

from ksim.compute import blocks, layer_norms
from ksim.compute.model import Config, Decoder

__all__ = ["nemotron"]


def nemotron(config: Config) -> Decoder:
    mlp = layer_norms.plain_mlp(config, config.get("hidden_act", "relu2"), bias=config.get("mlp_bias", False))
    layer = layer_norms.layer(blocks.attention(config), mlp)
    decoder = blocks.decoder(config, [layer] * config.need("num_hidden_layers"))
    return evolve(decoder, head=blocks.head(last=layer_norms.layer_norm("final_norm")))
