"""ERNIE 4.5, dense: a Llama."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["ernie4_5"]


def ernie4_5(config: Config) -> Decoder:
    bias = config.get("use_bias", False)
    layer = blocks.layer(blocks.attention(config, qkv_bias=bias, out_bias=bias), blocks.gated_mlp(config))
    return blocks.decoder(config, [layer] * config.need("num_hidden_layers"), tied=True)
