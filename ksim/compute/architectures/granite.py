"""IBM's Granite."""

from attrs import evolve

from ksim.compute import blocks, recurrent
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import op, pointwise

__all__ = ["granite", "granitemoe", "granitemoeshared", "granitemoehybrid"]


def granite(config: Config) -> Decoder:
    """Granite 3: a Llama that scales its embedding, its residuals and its logits.

    The scale of a residual is part of the norm that adds it, and that of the scores of the attention kernel.
    """
    layer = blocks.layer(blocks.attention(config), blocks.gated_mlp(config))
    return scaled(config, blocks.decoder(config, [layer] * config.need("num_hidden_layers")))


def scaled(config: Config, decoder: Decoder) -> Decoder:
    """*decoder* with the scales of a Granite."""
    for key in ("embedding_multiplier", "residual_multiplier", "logits_scaling"):
        config.factor(key)
    return evolve(decoder, embedding=blocks.embedding(scaled=True), head=blocks.head(scaled=True))


def granitemoe(config: Config) -> Decoder:
    """Granite 3's mixtures of experts: Mixtral's layers with the scales of a Granite."""
    layer = blocks.layer(blocks.attention(config), blocks.experts(config))
    return scaled(config, blocks.mixture(config, [layer] * config.need("num_hidden_layers")))


def granitemoeshared(config: Config) -> Decoder:
    """Granite's mixtures of experts beside one that every token meets."""
    mixture = blocks.experts(config, shared=blocks.shared_experts(config))
    layers = [blocks.layer(blocks.attention(config), mixture)] * config.need("num_hidden_layers")
    return scaled(config, blocks.mixture(config, layers, S=config.need("shared_intermediate_size")))


KINDS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention"}


def granitemoehybrid(config: Config) -> Decoder:
    """Granite 4: Mamba-2 in most layers and attention in some, mostly without rotary embeddings; dense, or with experts
    beside an MLP that every token meets.

    The factors of residuals and scores run inside other kernels.  vLLM adds up the ranks' results of experts and those
    of that MLP one after the other (granitemoehybrid.py).
    """
    rope = config.get("position_embedding_type", "nope") == "rope"
    mixers = {"attention": blocks.attention(config, before=None if rope else ()),
              "mamba": recurrent.mamba2(config.need("mamba_chunk_size", 256), bias=config.get("mamba_proj_bias", False),
                                    conv_bias=config.get("mamba_conv_bias", True))}
    sparse, mlp = min(map(config.count, ("num_local_experts", "num_experts_per_tok"))) > 0, blocks.gated_mlp(config)
    kinds = blocks.layer_types(config, ["mamba"] * config.need("num_hidden_layers"), tuple(KINDS))
    layers = blocks.layers((KINDS[kind] for kind in kinds), lambda kind: blocks.layer(
        mixers[kind], _experts(config) if sparse else mlp))
    size = config.need("shared_intermediate_size", config.get("intermediate_size", 0))
    make = blocks.mixture if sparse else blocks.decoder
    return scaled(config, make(config, layers, tied=False, **{**_sizes(config), "S" if sparse else "F": size}))


def _experts(config: Config) -> blocks.Operations:
    return (
        *blocks.experts(config),
        op("tm,mgS->tgS", "shared_gate_up", parallel="S", part="shared_experts"),
        pointwise("silu_mul", "tgS->tS", "shared_act", parallel="S"),
        op("tS,Sm->tm", "shared_down", parallel="S", part="shared_experts"),
        pointwise("add", "tm,tm->tm", "shared_add"),
    )


def _sizes(config: Config) -> dict[str, int]:
    inner = config.need("mamba_expand", 2) * config.need("hidden_size")
    return recurrent.mamba2_sizes(
        config, heads="mamba_n_heads", size="mamba_d_head", groups="mamba_n_groups", states="mamba_d_state",
        width="mamba_d_conv", inner=inner)
