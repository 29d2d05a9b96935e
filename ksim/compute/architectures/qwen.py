"""Alibaba's Qwen."""

from ksim.compute import blocks, recurrent
from ksim.compute.model import Config, Decoder

__all__ = ["qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe"]


def qwen2(config: Config) -> Decoder:
    """Qwen2 and Qwen2.5: Llama's layers with a bias on queries, keys and values."""
    windows = blocks.windows(config, blocks.late_windows(config))
    return blocks.decoder(config, blocks.layers(windows, lambda window: blocks.layer(
        blocks.attention(config, window, qkv_bias=True), blocks.gated_mlp(config))))


def qwen2_moe(config: Config) -> Decoder:
    """Qwen1.5 and Qwen2 mixtures of experts: Qwen2's attention, and experts beside a shared one that is gated."""
    mixture = blocks.experts(config, shared=blocks.shared_experts(config, gated=True))
    windows = blocks.windows(config, blocks.late_windows(config))
    return blocks.mixture(config, [
        blocks.layer(blocks.attention(config, window, qkv_bias=config.get("qkv_bias", True)),
                     mixture if sparse else blocks.gated_mlp(config))
        for window, sparse in zip(windows, blocks.sparse(config), strict=True)
    ], S=config.need("shared_expert_intermediate_size"), A=1)


def qwen3(config: Config) -> Decoder:
    """Qwen3: Llama's layers with a norm over each query and key head."""
    windows = blocks.windows(config, blocks.late_windows(config))
    return blocks.decoder(config, blocks.layers(windows, lambda window: blocks.layer(
        blocks.attention(config, window, qk_norm=True), blocks.gated_mlp(config))))


def qwen3_moe(config: Config) -> Decoder:
    """Qwen3 mixtures of experts: Qwen3's attention, and experts in all layers or in some.

    `norm_topk_prob` costs nothing either way: the router's kernel scales what it writes.
    """
    blocks.only(config, shared_expert_intermediate_size=0, use_qk_norm=True, qkv_bias=False)
    windows = blocks.windows(config, blocks.late_windows(config))
    return blocks.mixture(config, [
        blocks.layer(blocks.attention(config, window, qk_norm=True),
                     blocks.experts(config) if sparse else blocks.gated_mlp(config))
        for window, sparse in zip(windows, blocks.sparse(config), strict=True)
    ])


def qwen3_next(config: Config) -> Decoder:
    """Qwen3-Next: three of four layers attend linearly, the fourth in full, with gated outputs; experts in every layer.

    The layer that predicts a second token is not modelled.
    """
    blocks.only(config, mlp_only_layers=[], decoder_sparse_step=1)
    mixers = attention(config)
    mixture = blocks.experts(config, shared=blocks.shared_experts(config, gated=True))
    layers = blocks.layers(recurrent.kinds(config), lambda kind: blocks.layer(mixers[kind], mixture))
    shared = config.need("shared_expert_intermediate_size")
    return blocks.mixture(config, layers, tied=False, S=shared, **recurrent.sizes(config))


def attention(config: Config) -> dict[str, blocks.Operations]:
    """Attention of each kind of layer, as `linear.kinds` calls them."""
    gated = config.get("attn_output_gate", True)
    return {blocks.FULL: blocks.attention(config, qk_norm=True, gated=gated),
            recurrent.LINEAR: recurrent.attention(config)}


def qwen3_5(config: Config) -> Decoder:
    """Qwen3.5's dense models: Qwen3-Next's attention with a gated MLP; the vision part of their configs is left out."""
    config = blocks.text(config)
    blocks.only(config, mlp_only_layers=[])
    kinds, mixers = recurrent.kinds(config), attention(config)
    return blocks.decoder(config, blocks.layers(kinds, lambda kind: blocks.layer(
        mixers[kind], blocks.gated_mlp(config))), tied=False, **recurrent.sizes(config))


def qwen3_5_moe(config: Config) -> Decoder:
    """Qwen3.5's mixtures of experts: Qwen3-Next's layers; the vision part of their configs is left out."""
    return qwen3_next(blocks.text(config))
