"""NVIDIA's Nemotron."""

from collections.abc import Mapping

from attrs import evolve

from ksim.compute import blocks, recurrent
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import op, pointwise
from ksim.compute.notation.communicate import RECEIVED, SENT, Combine, Dispatch
from ksim.compute.recurrent import state_format
from ksim.foundation.errors import ConfigError

__all__ = ["nemotron", "nemotron_h", "nemotron_nas"]


def nemotron(config: Config) -> Decoder:
    """Nemotron-4 and Minitron: LayerNorms, whose weights are stored less 1, and an MLP of squared ReLU without a gate.

    Rotary embeddings of half of a head are taken to move as much as those of all of it.
    """
    mlp = blocks.plain_mlp(config, config.get("hidden_act", "relu2"), bias=config.get("mlp_bias", False))
    layer = blocks.layer_norm_layer(blocks.attention(config), mlp)
    decoder = blocks.decoder(config, [layer] * config.need("num_hidden_layers"))
    return evolve(decoder, head=blocks.head(last=blocks.layer_norm("final_norm")))


#: Letters of `hybrid_override_pattern`, and what `layers_block_type` says instead.
KINDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_h(config: Config) -> Decoder:
    """Nemotron H, Nemotron Nano 2 and Nemotron 3: each layer is one of Mamba-2, attention without rotary embeddings, an
    MLP of squared ReLU, and experts of such MLPs.

    In Nemotron 3 Super and Ultra experts work on a latent vector of each token, to which every rank projects; vLLM adds
    up the ranks' results in the latent space, and those of the shared experts on their own
    (fused_moe/runner/moe_runner.py).
    """
    blocks.only(config, mlp_hidden_act="relu2", use_bias=False, mlp_bias=False)
    kinds = _kinds(config)
    mixers = {"attention": blocks.attention(config, before=()),
              "mlp": blocks.plain_mlp(config, "relu2", bias=False)}
    if "mamba" in kinds:
        mixers["mamba"] = recurrent.mamba2(
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
        pointwise("topk", "TE->x", "topk", reads="fp32", writes="fp32", tokens=SENT),
        op(f"T{hidden},E{hidden}f->xf", "experts_up", parallel="f", routed="E", part="experts"),
        pointwise("relu2", "xf->xf", "experts_act", parallel="f"),
        op(f"xf,Ef{hidden}->x{hidden}", "experts_down", parallel="f", routed="E", part="experts"),
        pointwise("moe_combine", f"x{hidden}->T{hidden}", "combine", tokens=RECEIVED),
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
    return {**recurrent.mamba2_sizes(config, heads="mamba_num_heads", size="mamba_head_dim", groups="n_groups",
                                 states="ssm_state_size", width="conv_kernel"), **({"h": head} if head else {})}


#: The first Greek letter.
ALPHA = 0x3B1
#: vLLM rounds sizes of MLPs up to multiples of this (nemotron_nas.py).
MULTIPLE = 256
#: What a layer may lack or have; anything else in its description must be off.
READ = ("no_op", "n_heads_in_group", "ffn_mult", "intermediate_size", "hidden_act")


def nemotron_nas(config: Config) -> Decoder:
    """Llama-Nemotron Super and Ultra (`nemotron-nas`): Llamas, of whose layers a search kept attention or not, and an
    MLP of one size or another or none.

    Every size of MLP has an index of its own, a Greek letter.
    """
    kept = _kept(config)
    heads = config.need("num_attention_heads")
    groups = {part["n_heads_in_group"] for part, _ in kept if not part["no_op"]}
    if len(groups) != 1:
        raise ConfigError(f"{config.name}: block_configs", f"expected one n_heads_in_group, not {sorted(groups)}")
    config = config.instead({**config.table, "num_key_value_heads": heads // groups.pop(),
                             "intermediate_size": MULTIPLE})
    sizes = {size: chr(ALPHA + number) for number, size in enumerate(dict.fromkeys(
        _size(config, ffn) for _, ffn in kept if not ffn["no_op"]))}
    attention = (blocks.norm("attention_norm"), *blocks.attention(config))
    layers = [(*(() if part["no_op"] else attention), *(() if ffn["no_op"] else _mlp(sizes[_size(config, ffn)])))
              for part, ffn in kept]
    return blocks.decoder(config, layers, tied=False, **{letter: size for size, letter in sizes.items()})


def _mlp(index: str) -> blocks.Operations:
    return (
        blocks.norm("mlp_norm"),
        op(f"tm,mg{index}->tg{index}", "gate_up", parallel=index, part="mlp"),
        pointwise("silu_mul", f"tg{index}->t{index}", "act", parallel=index),
        op(f"t{index},{index}m->tm", "down", parallel=index, part="mlp"),
    )


def _size(config: Config, ffn: Mapping[str, float]) -> int:
    if ffn.get("intermediate_size"):
        return int(ffn["intermediate_size"])
    return -(int(-2 * ffn["ffn_mult"] * config.need("hidden_size") / 3) // MULTIPLE) * MULTIPLE


def _kept(config: Config) -> list[tuple[Mapping[str, float], Mapping[str, float]]]:
    """Attention and MLP of each layer as the config describes them; raises ConfigError for what is not modelled."""
    blocks.only(config, hidden_act="silu", mlp_bias=False)
    layers, count = config.get("block_configs", []), config.need("num_hidden_layers")
    if len(layers) != count:
        raise ConfigError(f"{config.name}: block_configs", f"expected {count} layers, not {len(layers)}")
    for layer in layers:
        for part in (layer["attention"], layer["ffn"]):
            if strangers := [key for key, value in part.items() if value and key not in READ]:
                raise ConfigError(f"{config.name}: block_configs", f"{strangers[0]} is not modelled")
    return [(layer["attention"], layer["ffn"]) for layer in layers]
