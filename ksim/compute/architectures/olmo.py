"""Ai2's OLMo."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["olmo2", "olmoe"]


def olmo2(config: Config) -> Decoder:
    """OLMo 2: norms after attention and MLP, and one norm each over all query heads and all key heads."""
    return blocks.decoder(config, blocks.layers(blocks.windows(config), lambda window: (
        *blocks.attention(config, window, wide_norm=True), blocks.post_norm("attention_norm"),
        *blocks.gated_mlp(config), blocks.post_norm("mlp_norm"))))


def olmoe(config: Config) -> Decoder:
    """OLMoE: Mixtral's layers with one norm over all query heads, and one over all key heads, for which ranks gather
    them.

    (vllm/model_executor/models/olmoe.py)
    """
    attention = blocks.attention(config, before=(*blocks.GATHERED_NORM, *blocks.ROPE))
    return blocks.mixture(config, [blocks.layer(attention, blocks.experts(config))] * config.need("num_hidden_layers"))
