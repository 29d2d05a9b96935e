"""Llama, and models with its layers."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["llama", "seed_oss", "smollm3"]


def llama(config: Config) -> Decoder:
    """Llama: grouped-query attention and a gated MLP, each after a norm."""
    return blocks.decoder(config, blocks.layers(blocks.windows(config), lambda window: blocks.layer(
        blocks.attention(config, window), blocks.gated_mlp(config))))


def seed_oss(config: Config) -> Decoder:
    """Seed-OSS: a Llama with biases on queries, keys and values."""
    attention = blocks.attention(config, out_bias=config.get("attention_out_bias", False))
    layer = blocks.layer(attention, blocks.gated_mlp(config))
    return blocks.decoder(config, [layer] * config.need("num_hidden_layers"))


def smollm3(config: Config) -> Decoder:
    """SmolLM3: a Llama, of whose layers every fourth has no rotary embeddings; a window, if there is one, is in
    these.
    """
    config.value("max_window_layers")  # Qwen's
    rotary, slides = blocks.rotary(config), config.get("use_sliding_window", False)
    windows = blocks.windows(config, [slides and not rotates for rotates in rotary])
    return blocks.decoder(config, blocks.layers(zip(windows, rotary, strict=True), lambda kind: blocks.layer(
        blocks.attention(config, kind[0], before=blocks.ROPE if kind[1] else ()), blocks.gated_mlp(config))), tied=True)
