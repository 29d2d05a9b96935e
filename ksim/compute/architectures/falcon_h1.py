"""Falcon H1: attention and Mamba-2 side by side in each layer, over the same normed hidden state, and a gated MLP.

Of its many factors, those of Mamba's first projection, of embeddings and of logits have kernels of their own; the
others run inside kernels beside them.
"""

from attrs import evolve

from ksim.compute import blocks, mamba
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import pointwise

__all__ = ["falcon_h1"]


def falcon_h1(config: Config) -> Decoder:
    blocks.only(config, projectors_bias=False)
    config.value("mlp_expansion_factor")  # what intermediate_size says outright
    layer = (
        blocks.norm("attention_norm"),
        *blocks.attention(config),
        *mamba.mamba2(config.need("mamba_chunk_size", 256), bias=config.get("mamba_proj_bias", False), scaled=True,
                      conv_bias=config.get("mamba_conv_bias", True), norm=config.get("mamba_rms_norm", False)),
        pointwise("add", "tm,tm->tm", "mixers_add"),
        blocks.norm("mlp_norm"),
        *blocks.gated_mlp(config),
    )
    decoder = blocks.decoder(config, [layer] * config.need("num_hidden_layers"), tied=False, **_sizes(config))
    return evolve(decoder, embedding=blocks.embedding(scaled=True), head=blocks.head(scaled=True))


def _sizes(config: Config) -> dict[str, int]:
    expanded = config.need("mamba_expand", 2) * config.need("hidden_size")
    return mamba.mamba2_sizes(
        config, heads="mamba_n_heads", size="mamba_d_head", groups="mamba_n_groups", states="mamba_d_state",
        width="mamba_d_conv", inner=config.need("mamba_d_ssm", expanded))
