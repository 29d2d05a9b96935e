"""Qwen1.5 and Qwen2 mixtures of experts: Qwen2's attention, and experts beside a shared one that is gated."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["qwen2_moe"]


def qwen2_moe(config: Config) -> Decoder:
    mixture = blocks.experts(config, shared=blocks.shared_experts(config, gated=True))
    windows = blocks.windows(config, blocks.late_windows(config))
    return blocks.mixture(config, [
        blocks.layer(blocks.attention(config, window, qkv_bias=config.get("qkv_bias", True)),
                     mixture if sparse else blocks.gated_mlp(config))
        for window, sparse in zip(windows, blocks.sparse(config), strict=True)
    ], S=config.need("shared_expert_intermediate_size"), A=1)
