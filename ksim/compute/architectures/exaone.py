"""LG's EXAONE."""

from ksim.compute import blocks
from ksim.compute.architectures.llama import llama
from ksim.compute.model import Config, Decoder

__all__ = ["exaone", "exaone4"]


def exaone(config: Config) -> Decoder:
    """EXAONE 3 and 3.5: a Llama that calls its sizes otherwise."""
    return llama(config.under({"num_layers": "num_hidden_layers", "activation_function": "hidden_act"}))


def exaone4(config: Config) -> Decoder:
    """Exaone 4: norms after attention and MLP and of each head, and a window in three of four layers of the large one.

    Layers without a window have no rotary embeddings, unless none has one.
    """
    pattern, number = config.value("sliding_window_pattern") or "G", config.need("num_hidden_layers")
    letters = pattern if isinstance(pattern, str) else "L" * (pattern - 1) + "G"
    windows = blocks.windows(config, [letters[layer % len(letters)] == "L" for layer in range(number)])
    return blocks.decoder(config, blocks.layers(windows, lambda window: (
        *blocks.attention(config, window, before=(
            *blocks.HEAD_NORM, *(blocks.ROPE if window or not any(windows) else ()))),
        blocks.post_norm("attention_norm"), *blocks.gated_mlp(config), blocks.post_norm("mlp_norm"))))
