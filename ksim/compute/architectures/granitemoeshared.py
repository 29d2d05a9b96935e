"""Granite's mixtures of experts beside one that every token meets."""

from ksim.compute import blocks
from ksim.compute.architectures.granite import scaled
from ksim.compute.model import Config, Decoder

__all__ = ["granitemoeshared"]


def granitemoeshared(config: Config) -> Decoder:
    mixture = blocks.experts(config, shared=blocks.shared_experts(config))
    layers = [blocks.layer(blocks.attention(config), mixture)] * config.need("num_hidden_layers")
    return scaled(config, blocks.mixture(config, layers, S=config.need("shared_intermediate_size")))
