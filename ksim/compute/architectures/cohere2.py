"""Command A and R7B: Command R's layers, three of four with a window and rotary embeddings, the fourth with neither.

A windowed query sees one token more than `sliding_window` says, as in vLLM.
"""

from ksim.compute import blocks
from ksim.compute.architectures.cohere import built, parallel
from ksim.compute.model import Config, Decoder

__all__ = ["cohere2"]


def cohere2(config: Config) -> Decoder:
    blocks.only(config, use_qk_norm=False)
    every = config.need("sliding_window_pattern", config.need("_sliding_window_pattern", 4))
    slides = [(layer + 1) % every != 0 for layer in range(config.need("num_hidden_layers"))]
    return built(config, blocks.layers(blocks.windows(config, slides), lambda window: parallel(
        blocks.attention(config, window and window + 1, before=blocks.ROPE if window else (), reduced=False),
        blocks.gated_mlp(config, reduced=False))))
