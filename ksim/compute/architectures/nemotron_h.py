"""Nemotron H, Nemotron Nano 2 and Nemotron 3: each layer is one of Mamba-2, attention without rotary embeddings, an MLP
of squared ReLU, and experts of such MLPs.

In Nemotron 3 Super and Ultra experts work on a latent vector of each token, to which every rank projects; vLLM adds up
the ranks' results in the latent space, and those of the shared experts on their own (fused_moe/runner/moe_runner.py).
"""

from ksim.compute import blocks, layer_norms, mamba
from ksim.compute.exchange import Combine, Dispatch
from ksim.compute.linear import state_format
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import op, pointwise
from ksim.foundation.errors import ConfigError

__all__ = ["nemotron_h"]

#: Letters of `hybrid_override_pattern`, and what `layers_block_type` says instead.
KINDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_h(config: Config) -> Decoder:
    blocks.only(config, mlp_hidden_act="relu2", use_bias=False, mlp_bias=False)
    kinds = _kinds(config)
    mixers = {"attention": blocks.attention(config, before=()),
              "mlp": layer_norms.plain_mlp(config, "relu2", bias=False)}
    if "mamba" in kinds:
        mixers["mamba"] = mamba.mamba2(
            config.need("chunk_size", 256), bias=config.get("mamba_proj_bias", False),
            conv_bias=config.get("use_conv_bias", True),
            state=state_format(config, "mamba_ssm_cache_dtype", "float32"))
    if "moe" in kinds:
        mixers["moe"] = _latent_experts() if config.count("moe_latent_size") else _experts(config)
    layers = blocks.layers(kinds, lambda kind: (blocks.norm("norm"), *mixers[kind]))
    if "moe" not in kinds:
        return blocks.decoder(config, layers, tied=False, **_sizes(config))
    shared = config.need("moe_shared_expert_intermediate_size") * config.need("n_shared_experts", 1)
    return blocks.mixture(config, layers, tied=False, S=shared, L=config.need("moe_latent_size", 1), **_sizes(config))


def _kinds(config: Config) -> list[str]:
    """The kind of each layer, by a pattern of letters or a list of words."""
    pattern = config.get("hybrid_override_pattern", "")
    kinds = [KINDS.get(letter, letter) for letter in pattern] or config.texts("layers_block_type")
    if strangers := [kind for kind in kinds if kind not in KINDS.values()]:
        raise ConfigError(f"{config.name}: {'hybrid_override_pattern' if pattern else 'layers_block_type'}",
                          f"{strangers[0]!r} is none of {', '.join(KINDS if pattern else KINDS.values())}")
    if kinds and config.need("num_hidden_layers", len(kinds)) != len(kinds):
        raise ConfigError(f"{config.name}: num_hidden_layers", f"the pattern has {len(kinds)} layers")
    if not kinds:
        raise ConfigError(f"{config.name}: hybrid_override_pattern", "is missing, and so is layers_block_type")
    return kinds


def _shared(reduced: bool) -> blocks.Operations:
    return (
        op("tm,mS->tS", "shared_up", parallel="S", part="shared_experts"),
        pointwise("relu2", "tS->tS", "shared_act", parallel="S"),
        op("tS,Sm->tm", "shared_down", parallel="S", part="shared_experts", reduced=reduced),
    )


def _routed(hidden: str) -> blocks.Operations:
    """The experts that tokens of size *hidden* go to, up to the sum of each token's results on this rank."""
    return (
        Dispatch(hidden=hidden),
        pointwise("topk", "TE->x", "topk", reads="fp32", writes="fp32"),
        op(f"T{hidden},E{hidden}f->xf", "experts_up", parallel="f", routed="E", part="experts"),
        pointwise("relu2", "xf->xf", "experts_act", parallel="f"),
        op(f"xf,Ef{hidden}->x{hidden}", "experts_down", parallel="f", routed="E", part="experts"),
        pointwise("moe_combine", f"x{hidden}->T{hidden}", "combine"),
        Combine(hidden=hidden),
    )


ROUTER = (op("tm,mE->tE", "router", quantized=False, exact=True), *blocks.CORRECTION)
ADD = pointwise("add", "tm,tm->tm", "shared_add")


def _experts(config: Config) -> blocks.Operations:
    return *ROUTER, *((*_shared(reduced=False), ADD) if config.count("n_shared_experts") else ()), *_routed("m")


def _latent_experts() -> blocks.Operations:
    return (
        *ROUTER,
        *_shared(reduced=True),
        op("tm,mL->tL", "latent_in", part="shared_experts"),
        *_routed("L"),
        op("tL,Lm->tm", "latent_out", part="shared_experts"),
        ADD,
    )


def _sizes(config: Config) -> dict[str, int]:
    """Those of Mamba-2, and of an attention head, which older configs call otherwise."""
    config.value("expand")  # of no account beside the number of heads and their size
    head = config.count("attention_head_dim")
    return {**mamba.mamba2_sizes(config, heads="mamba_num_heads", size="mamba_head_dim", groups="n_groups",
                                 states="ssm_state_size", width="conv_kernel"), **({"h": head} if head else {})}
