"""Qwen3: Llama's layers with a norm over each query and key head."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["qwen3"]


def qwen3(config: Config) -> Decoder:
    windows = blocks.windows(config, blocks.late_windows(config))
    return blocks.decoder(config, blocks.layers(windows, lambda window: blocks.layer(
        blocks.attention(config, window, qk_norm=True), blocks.gated_mlp(config))))
