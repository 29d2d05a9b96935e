"""SmolLM3: a Llama, of whose layers every fourth has no rotary embeddings; a window, if there is one, is in these."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["smollm3"]


def smollm3(config: Config) -> Decoder:
    config.value("max_window_layers")  # Qwen's
    rotary, slides = blocks.rotary(config), config.get("use_sliding_window", False)
    windows = blocks.windows(config, [slides and not rotates for rotates in rotary])
    return blocks.decoder(config, blocks.layers(zip(windows, rotary, strict=True), lambda kind: blocks.layer(
        blocks.attention(config, kind[0], before=blocks.ROPE if kind[1] else ()), blocks.gated_mlp(config))), tied=True)
