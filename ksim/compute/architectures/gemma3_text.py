"""Gemma 3's language model: Gemma 2's layers with norms of queries and keys, five of six with a window.

`max_position_embeddings` is the stretched length already, as in vLLM.
"""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["gemma3_text"]


def gemma3_text(config: Config) -> Decoder:
    every = config.need("sliding_window_pattern", config.need("_sliding_window_pattern", 6))
    slides = [(layer + 1) % every != 0 for layer in range(config.need("num_hidden_layers"))]
    decoder = blocks.decoder(config, blocks.layers(blocks.windows(config, slides), lambda window: blocks.sandwich(
        blocks.attention(config, window, qk_norm=True), blocks.gated_mlp(config))), tied=True)
    capped = config.value("final_logit_softcapping") is not None
    return evolve(decoder, embedding=blocks.embedding(scaled=True), head=blocks.head(cap=capped),
                  max_length=config.need("max_position_embeddings", 131_072))
