"""Qwen3 mixtures of experts: Qwen3's attention, and experts in all layers or in some.

`norm_topk_prob` costs nothing either way: the router's kernel scales what it writes.
"""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["qwen3_moe"]


def qwen3_moe(config: Config) -> Decoder:
    blocks.only(config, shared_expert_intermediate_size=0, use_qk_norm=True, qkv_bias=False)
    windows = blocks.windows(config, blocks.late_windows(config))
    return blocks.mixture(config, [
        blocks.layer(blocks.attention(config, window, qk_norm=True),
                     blocks.experts(config) if sparse else blocks.gated_mlp(config))
        for window, sparse in zip(windows, blocks.sparse(config), strict=True)
    ])
