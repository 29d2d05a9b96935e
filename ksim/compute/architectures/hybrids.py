"""Attention beside Mamba layers: Falcon-H1 and Jamba."""

from collections.abc import Callable
from math import ceil

from attrs import evolve

from ksim.compute import blocks, recurrent
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import pointwise

__all__ = ["falcon_h1", "jamba"]


def falcon_h1(config: Config) -> Decoder:
    """Falcon H1: attention and Mamba-2 side by side in each layer, over the same normed hidden state, and a gated MLP.

    Of its many factors, those of Mamba's first projection, of embeddings and of logits have kernels of their own; the
    others run inside kernels beside them.
    """
    blocks.only(config, projectors_bias=False)
    config.value("mlp_expansion_factor")  # what intermediate_size says outright
    layer = (
        blocks.norm("attention_norm"),
        *blocks.attention(config),
        *recurrent.mamba2(config.need("mamba_chunk_size", 256), bias=config.get("mamba_proj_bias", False), scaled=True,
                      conv_bias=config.get("mamba_conv_bias", True), norm=config.get("mamba_rms_norm", False)),
        pointwise("add", "tm,tm->tm", "mixers_add"),
        blocks.norm("mlp_norm"),
        *blocks.gated_mlp(config),
    )
    decoder = blocks.decoder(config, [layer] * config.need("num_hidden_layers"), tied=False, **_sizes(config))
    return evolve(decoder, embedding=blocks.embedding(scaled=True), head=blocks.head(scaled=True))


def _sizes(config: Config) -> dict[str, int]:
    expanded = config.need("mamba_expand", 2) * config.need("hidden_size")
    return recurrent.mamba2_sizes(
        config, heads="mamba_n_heads", size="mamba_d_head", groups="mamba_n_groups", states="mamba_d_state",
        width="mamba_d_conv", inner=config.need("mamba_d_ssm", expanded))


def jamba(config: Config) -> Decoder:
    """Jamba: Mamba with inner norms in seven of eight layers, attention without rotary embeddings in one, and experts
    in every other layer.
    """
    mixers = {True: blocks.attention(config, before=()),
              False: recurrent.mamba(bias=config.get("mamba_proj_bias", False), norms=True,
                                 conv_bias=config.get("mamba_conv_bias", True))}
    mlps = {True: blocks.experts(config), False: blocks.gated_mlp(config)}
    layers = range(config.need("num_hidden_layers"))
    attends = _every(config, "attn_layer", 8, 4)
    sparse = _every(config, "expert_layer", 2, 1) if config.need("num_experts", 16) > 1 else lambda layer: False
    return blocks.mixture(config, blocks.layers(
        ((attends(layer), sparse(layer)) for layer in layers),
        lambda kind: blocks.layer(mixers[kind[0]], mlps[kind[1]])), tied=False, **_jamba_sizes(config))


def _every(config: Config, name: str, period: int, offset: int) -> Callable[[int], bool]:
    """Whether a layer is one of those that come once in every few, from which offset on."""
    turn, first = config.need(f"{name}_period", period), config.get(f"{name}_offset", offset)
    return lambda layer: layer % turn == first


def _jamba_sizes(config: Config) -> dict[str, int]:
    hidden, states = config.need("hidden_size"), config.need("mamba_d_state", 16)
    auto = config.value("mamba_dt_rank") in (None, "auto")
    rank = ceil(hidden / 16) if auto else config.need("mamba_dt_rank")
    return {"I": config.need("mamba_expand", 2) * hidden, "N": states, "R": rank, "Q": rank + 2 * states,
            "W": config.need("mamba_d_conv", 4)}
