"""Granite 3: a Llama that scales its embedding, its residuals and its logits.

The scale of a residual is part of the norm that adds it, and that of the scores of the attention kernel.
"""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["granite"]


def granite(config: Config) -> Decoder:
    layer = blocks.layer(blocks.attention(config), blocks.gated_mlp(config))
    return scaled(config, blocks.decoder(config, [layer] * config.need("num_hidden_layers")))


def scaled(config: Config, decoder: Decoder) -> Decoder:
    """*decoder* with the scales of a Granite."""
    for key in ("embedding_multiplier", "residual_multiplier", "logits_scaling"):
        config.factor(key)
    return evolve(decoder, embedding=blocks.embedding(scaled=True), head=blocks.head(scaled=True))
