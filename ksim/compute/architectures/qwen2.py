"""Qwen2 and Qwen2.5: Llama's layers with a bias on queries, keys and values."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["qwen2"]


def qwen2(config: Config) -> Decoder:
    windows = blocks.windows(config, blocks.late_windows(config))
    return blocks.decoder(config, blocks.layers(windows, lambda window: blocks.layer(
        blocks.attention(config, window, qkv_bias=True), blocks.gated_mlp(config))))
