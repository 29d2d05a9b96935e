"""GLM-4 of 2025 (0414): norms before and after each block, and biases on queries, keys and values."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["glm4"]


def glm4(config: Config) -> Decoder:
    layer = blocks.sandwich(blocks.attention(config, out_bias=False), blocks.gated_mlp(config))
    return blocks.decoder(config, [layer] * config.need("num_hidden_layers"))
