"""Qwen3-Next: three of four layers attend linearly, the fourth in full, with gated outputs; experts in every layer.

The layer that predicts a second token is not modelled.
"""

from ksim.compute import blocks, linear
from ksim.compute.model import Config, Decoder

__all__ = ["qwen3_next"]


def qwen3_next(config: Config) -> Decoder:
    blocks.only(config, mlp_only_layers=[], decoder_sparse_step=1)
    mixers = attention(config)
    mixture = blocks.experts(config, shared=blocks.shared_experts(config, gated=True))
    layers = blocks.layers(linear.kinds(config), lambda kind: blocks.layer(mixers[kind], mixture))
    shared = config.need("shared_expert_intermediate_size")
    return blocks.mixture(config, layers, tied=False, S=shared, **linear.sizes(config))


def attention(config: Config) -> dict[str, blocks.Operations]:
    """Attention of each kind of layer, as `linear.kinds` calls them."""
    gated = config.get("attn_output_gate", True)
    return {blocks.FULL: blocks.attention(config, qk_norm=True, gated=gated), linear.LINEAR: linear.attention(config)}
