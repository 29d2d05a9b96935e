"""Exaone 4: norms after attention and MLP and of each head, and a window in three of four layers of the large one.

Layers without a window have no rotary embeddings, unless none has one.
"""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["exaone4"]


def exaone4(config: Config) -> Decoder:
    pattern, number = config.value("sliding_window_pattern") or "G", config.need("num_hidden_layers")
    letters = pattern if isinstance(pattern, str) else "L" * (pattern - 1) + "G"
    windows = blocks.windows(config, [letters[layer % len(letters)] == "L" for layer in range(number)])
    return blocks.decoder(config, blocks.layers(windows, lambda window: (
        *blocks.attention(config, window, before=(
            *blocks.HEAD_NORM, *(blocks.ROPE if window or not any(windows) else ()))),
        blocks.post_norm("attention_norm"), *blocks.gated_mlp(config), blocks.post_norm("mlp_norm"))))
