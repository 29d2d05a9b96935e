"""Seed-OSS: a Llama with biases on queries, keys and values."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["seed_oss"]


def seed_oss(config: Config) -> Decoder:
    attention = blocks.attention(config, out_bias=config.get("attention_out_bias", False))
    layer = blocks.layer(attention, blocks.gated_mlp(config))
    return blocks.decoder(config, [layer] * config.need("num_hidden_layers"))
