"""Baidu's ERNIE 4.5."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["ernie4_5", "ernie4_5_moe"]


def ernie4_5(config: Config) -> Decoder:
    """ERNIE 4.5, dense: a Llama."""
    bias = config.get("use_bias", False)
    layer = blocks.layer(blocks.attention(config, qkv_bias=bias, out_bias=bias), blocks.gated_mlp(config))
    return blocks.decoder(config, [layer] * config.need("num_hidden_layers"), tied=True)


def ernie4_5_moe(config: Config) -> Decoder:
    """ERNIE 4.5's mixtures of experts: Llama's attention, and after the first layers experts beside shared ones."""
    blocks.only(config, moe_gate="topk", use_bias=False)
    shared, size = config.count("moe_num_shared_experts"), config.need("moe_intermediate_size")
    mixture = blocks.experts(config, shared=blocks.shared_experts(config) if shared else (), exact=True,
                             corrected=config.get("moe_use_aux_free", True))
    attention = blocks.attention(config)
    kinds = [blocks.layer(attention, blocks.gated_mlp(config)), blocks.layer(attention, mixture)]
    return blocks.mixture(config, [kinds[sparse] for sparse in _sparse(config)], tied=True, S=max(1, shared) * size)


def _sparse(config: Config) -> list[bool]:
    """Which layers have experts: from one to another, every few of them."""
    layers, every = config.need("num_hidden_layers"), config.need("moe_layer_interval", 1)
    start, end = config.count("moe_layer_start_index"), config.get("moe_layer_end_index", -1)
    return [start <= layer <= (end if end >= 0 else layers) and (layer + 1) % every == 0 for layer in range(layers)]
