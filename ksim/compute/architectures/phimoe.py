"""Phi-3.5-MoE: Mixtral's layers with LayerNorms and biases of all projections but the experts'."""

from attrs import evolve

from ksim.compute import blocks, layer_norms
from ksim.compute.model import Config, Decoder

__all__ = ["phimoe"]


def phimoe(config: Config) -> Decoder:
    layers = blocks.layers(blocks.windows(config), lambda window: layer_norms.layer(
        blocks.attention(config, window), blocks.experts(config)))
    head = blocks.head(bias=config.get("lm_head_bias", False), last=layer_norms.layer_norm("final_norm"))
    return evolve(blocks.mixture(config, layers), head=head)
