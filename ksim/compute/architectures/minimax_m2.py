"""MiniMax-M2: experts in all layers, and a norm over all query heads at once and over all key heads.

The router computes in FP32, and ranks add up squares before they norm (vllm/model_executor/models/minimax_m2.py).
Rotary embeddings of half a head are taken to move as much as those of a whole one: the kernel passes over all of it.
"""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder
from ksim.foundation.errors import ConfigError

__all__ = ["minimax_m2"]


def minimax_m2(config: Config) -> Decoder:
    blocks.only(config, qk_norm_type="per_layer", shared_intermediate_size=0)
    if {*config.get("attn_type_list", [1])} != {1}:
        raise ConfigError(f"{config.name}: attn_type_list", "only full attention in all layers (1) is modelled")
    attention = blocks.attention(config, wide_norm=config.get("use_qk_norm", True))
    layer = blocks.layer(attention, blocks.experts(config, exact=True, corrected=config.get("use_routing_bias", True)))
    return blocks.mixture(config, [layer] * config.need("num_hidden_layers"))
