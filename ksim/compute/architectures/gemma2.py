"""Gemma 2: norms before and after each block, a sliding window in every other layer, capped logits.

The cap on attention scores runs inside the attention kernel; like the softmax's, its few FLOP a score, next
to 4 x head_dim, are not counted.
"""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["gemma2"]


def gemma2(config: Config) -> Decoder:
    every_other = [layer % 2 == 0 for layer in range(config.need("num_hidden_layers"))]
    decoder = blocks.decoder(config, [
        blocks.sandwich(blocks.attention(config, window), blocks.gated_mlp(config))
        for window in blocks.windows(config, every_other)], tied=True)
    return evolve(decoder, embedding=blocks.embedding(scaled=True), head=blocks.head(cap=_capped(config)))


def _capped(config: Config) -> bool:
    """Whether logits are capped: unless the config says null."""
    return config.value("final_logit_softcapping") is not None or "final_logit_softcapping" not in config.table
