"""Parts that many architectures share, from a layer's attention to the whole decoder."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import Any

from attrs import asdict

from ksim.compute.exchange import Combine, Dispatch
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import Lookup, attend, communicate, op, pointwise
from ksim.compute.notation import Operation
from ksim.compute.notation.pointwise import Elementwise
from ksim.compute.quantization import stored
from ksim.foundation.errors import ConfigError

Operations = tuple[Operation, ...]

#: `hidden_act`, and the kernel that applies it to the gate and multiplies by up.
ACTIVATIONS = {"silu": "silu_mul", "gelu": "gelu_mul", "gelu_pytorch_tanh": "gelu_mul"}
#: Scaled rotary embeddings whose `max_position_embeddings` is the stretched length already, as in vLLM.
STRETCHED = {"default", "llama3", "longrope", "mrope", "su"}
#: Keys of the language model that a multimodal config may have beside its `text_config`.
OUTSIDE = {"quantization_config", "tie_word_embeddings"}
#: What `layer_types` calls attention with a window and without.
SLIDING, FULL = "sliding_attention", "full_attention"


def decoder(
    config: Config, layers: Sequence[Operations], *, tied: bool = False, top_k: int = 0, **more: int
) -> Decoder:
    """The whole model; *tied* is the default of `tie_word_embeddings`, *more* are sizes of further indices.

    Raises ConfigError for an unknown quantization of the weights.
    """
    unique: dict[Operations, Operations] = {}  # equal layers become one object, which compares faster
    objects = {id(layer): layer for layer in layers}.values()
    shared = {id(layer): unique.setdefault(layer, layer) for layer in objects}
    return Decoder(
        sizes={**sizes(config), **more}, embedding=embedding(), layers=tuple(shared[id(layer)] for layer in layers),
        head=head(), max_length=max_length(config), tied=config.get("tie_word_embeddings", tied), top_k=top_k,
        **asdict(stored(config), recurse=False))


def mixture(config: Config, layers: Sequence[Operations], *, tied: bool = False, **more: int) -> Decoder:
    """A decoder with a mixture of experts; the rest is as for `decoder`."""
    size, top_k = expert_sizes(config), config.need(_first(config, CHOSEN))
    if top_k > size["E"]:
        raise ConfigError(f"{config.name}: {_first(config, CHOSEN)}", f"{top_k} is more than the {size['E']} experts")
    return decoder(config, layers, tied=tied, top_k=top_k, **size, **more)


def sizes(config: Config) -> dict[str, int]:
    """The sizes of a transformer with grouped-query attention, by their usual names in config.json."""
    heads = config.need("num_attention_heads")
    kv_heads = config.need("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(f"{config.name}: num_key_value_heads", f"{kv_heads} does not divide {heads} attention heads")
    group, hidden = heads // kv_heads, config.need("hidden_size")
    if not config.table.get("head_dim") and hidden % heads:
        raise ConfigError(f"{config.name}: num_attention_heads", f"{heads} does not divide hidden_size = {hidden}, and"
                                                                 " there is no head_dim")
    return {
        "m": hidden, "V": config.need("vocab_size"), "g": 2,
        "F": config.need("intermediate_size", config.get("moe_intermediate_size", 0)),
        "K": kv_heads, "r": group, "i": group + 2, "l": 2 * group + 2, "h": config.need("head_dim", hidden // heads),
    }


def text(config: Config) -> Config:
    """The part of a multimodal config that describes the language model, or else *config* itself."""
    part = config.part("text_config").table
    outer = {key: value for key, value in config.table.items() if key in OUTSIDE}
    return Config(config.name, {**outer, **part}) if part else config


def only(config: Config, **values: Any) -> None:
    """Raise ConfigError where *config* has another value under a key than the one that is modelled."""
    for key, modelled in values.items():
        if (value := config.get(key, modelled)) != modelled:
            raise ConfigError(f"{config.name}: {key}", f"{value!r} is not modelled, only {modelled!r}")


def max_length(config: Config) -> int:
    """The longest sequence in tokens; a scaled rotary embedding stretches it as in vLLM."""
    length = config.need("max_position_embeddings")
    scaling = config.part("rope_parameters" if config.table.get("rope_scaling") is None else "rope_scaling")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in STRETCHED:
        return length
    if kind == "yarn":
        length = scaling.need("original_max_position_embeddings", length)
    return max(1, int(length * scaling.factor("factor")))


def windows(config: Config, sliding: Sequence[bool] = ()) -> list[int]:
    """The attention window of each layer in tokens, 0 for none.

    `layer_types` says which layers have the config's `sliding_window`, or else *sliding*; all of them if that is empty.
    """
    window = config.need("sliding_window") if config.table.get("sliding_window") else 0
    slides = sliding or [True] * config.need("num_hidden_layers")
    kinds = layer_types(config, [SLIDING if slide else FULL for slide in slides], (SLIDING, FULL))
    return [window if kind == SLIDING else 0 for kind in kinds]


def layer_types(config: Config, default: list[str], known: Sequence[str]) -> list[str]:
    """The type of each layer, or *default*; raises ConfigError for a type that is not *known*."""
    kinds, layers = config.get("layer_types", default), config.need("num_hidden_layers")
    if len(kinds) != layers or any(kind not in known for kind in kinds):
        raise ConfigError(f"{config.name}: layer_types", f"expected {layers} times {' or '.join(known)}")
    return kinds


def late_windows(config: Config) -> list[bool]:
    """Which layers have a window by Qwen's settings: the last ones, and only with `use_sliding_window`."""
    layers = range(config.need("num_hidden_layers"))
    return [config.get("use_sliding_window", False) and layer >= config.get("max_window_layers", 28)
            for layer in layers]


def norm(label: str) -> Elementwise:
    """RMSNorm fused with the residual addition before it; hidden state and residual are read and written."""
    return pointwise("fused_add_rms_norm", "tm,tm->tm,tm", label, scale="m")


def inner_norm(label: str) -> Elementwise:
    """RMSNorm of the output of attention or MLP, before the residual addition."""
    return pointwise("rms_norm", "tm->tm", label, scale="m")


def layer(attention: Operations, mlp: Operations) -> Operations:
    """A layer with a norm before *attention* and one before *mlp*, which may be a mixture of experts."""
    return (norm("attention_norm"), *attention, norm("mlp_norm"), *mlp)


def layers(kinds: Iterable[Hashable], make: Callable[..., Operations]) -> list[Operations]:
    """The layer that *make* returns for each of *kinds*, made once for all layers of a kind."""
    return list(map(cache(make), kinds))


#: Norms of queries and keys: of each head, or over all heads at once, for which ranks add up squares in FP32.
HEAD_NORM = (pointwise("rms_norm", "tKrh,tKh->tKrh,tKh", "qk_norm", parallel="K", scale="h,h"),)
WIDE_NORM = (pointwise("rms_norm", "tKrh,tKh->tg", "qk_squares", parallel="K", writes="fp32"),
             communicate("all_reduce", "tg", "qk_norm_all_reduce", "fp32"),
             pointwise("rms_norm", "tKrh,tKh->tKrh,tKh", "qk_norm", parallel="K", scale="Krh,Kh"))


def attention(config: Config, window: int = 0, *, qk_norm: bool = False, wide_norm: bool = False,
              sinks: bool = False, gated: bool = False, qkv_bias: bool = False) -> Operations:
    """Grouped-query attention, from the normed hidden state to the output projection.

    *gated* outputs are multiplied by gates, which the first projection computes too.  *qkv_bias* is a bias of that
    projection alone, which config.json does not mention.
    """
    bias = config.get("attention_bias", False)
    norms = WIDE_NORM if wide_norm else HEAD_NORM if qk_norm else ()
    return (
        op("tm,mlKh->tlKh" if gated else "tm,miKh->tiKh", "qkv", parallel="K", bias=bias or qkv_bias,
           part="attention_inputs"),
        *norms,
        pointwise("rope", "tKrh,tKh->tKrh,tKh", "rope", parallel="K"),
        pointwise("kv_write", "tKh,tKh->tKh,tKh", "kv_write", parallel="K", writes="cache"),
        attend(window=window, sinks=sinks),
        *((pointwise("sigmoid_mul", "tKrh,tKrh->tKrh", "gate", parallel="K"),) if gated else ()),
        op("tKrh,Krhm->tm", "o_proj", parallel="K", bias=bias, part="attention"),
    )


def gated_mlp(config: Config) -> Operations:
    bias = config.get("mlp_bias", False)
    return (
        op("tm,mgF->tgF", "gate_up", parallel="F", bias=bias, part="mlp"),
        pointwise(_activation(config), "tgF->tF", "act", parallel="F"),
        op("tF,Fm->tm", "down", parallel="F", bias=bias, part="mlp"),
    )


#: What configs call the number of experts, how many of them a token goes to, and the size of one.
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
CHOSEN = ("num_experts_per_tok", "experts_per_token")
EXPERT_SIZE = ("moe_intermediate_size", "intermediate_size")


def expert_sizes(config: Config) -> dict[str, int]:
    """The sizes of a mixture of experts."""
    return {"E": config.need(_first(config, EXPERTS)), "f": config.need(_first(config, EXPERT_SIZE))}


def _first(config: Config, keys: Sequence[str]) -> str:
    """The first of *keys* that the config has, or else the first."""
    return next((key for key in keys if config.table.get(key) is not None), keys[0])


def experts(config: Config, *, bias: bool = False, shared: Operations = (), exact: bool = False) -> Operations:
    """A mixture of experts: route, dispatch tokens to their experts, compute, and combine each token's results.

    *shared* experts see all tokens; their partial sums join the all-reduce.  An *exact* router is in FP32.
    """
    return (
        op("tm,mE->tE", "router", bias=bias, quantized=False, exact=exact),
        *shared,
        Dispatch(),
        pointwise("topk", "TE->x", "topk", reads="fp32", writes="fp32"),
        op("Tm,Emgf->xgf", "experts_gate_up", parallel="f", routed="E", bias=bias, part="experts"),
        pointwise(_activation(config), "xgf->xf", "experts_act", parallel="f"),
        op("xf,Efm->xm", "experts_down", parallel="f", routed="E", bias=bias, part="experts"),
        pointwise("moe_combine", "xm->Tm", "combine"),
        Combine(),
    )


def shared_experts(config: Config, *, gated: bool = False) -> Operations:
    """Experts that every token goes to: one MLP of size S, all-reduced together with the routed experts.

    *gated* results are scaled by one number a token, from a projection of its own (A is 1).
    """
    gate = (op("tm,mA->tA", "shared_gate", quantized=False), pointwise("sigmoid_mul", "tm,tA->tm", "shared_scale"))
    return (
        op("tm,mgS->tgS", "shared_gate_up", parallel="S", part="shared_experts"),
        pointwise(_activation(config), "tgS->tS", "shared_act", parallel="S"),
        op("tS,Sm->tm", "shared_down", parallel="S", part="shared_experts", reduced=False),
        *(gate if gated else ()),
        pointwise("add", "tm,tm->tm", "shared_add"),
    )


def _activation(config: Config) -> str:
    key = "hidden_activation" if config.get("hidden_activation", "") else "hidden_act"
    name = config.get(key, "silu")
    if name not in ACTIVATIONS:
        raise ConfigError(f"{config.name}: {key}", f"{name!r} is none of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def embedding() -> Operations:
    return (Lookup("Vm->tm", "embedding", parallel="V"),)


def head(cap: bool = False) -> Operations:
    """The last norm, the logits of each sequence's last token, capped or not, and greedy sampling."""
    softcap = (pointwise("softcap", "sV->sV", "logits_softcap"),) if cap else ()
    return (
        norm("final_norm"),
        op("sm,mV->sV", "lm_head", parallel="V", quantized=False),
        communicate("all_gather", "sV", "logits_gather"),
        *softcap,
        pointwise("cast", "sV->sV", "logits_cast", writes="fp32"),
        pointwise("argmax", "sV->s", "sample", reads="fp32", writes="fp32"),
    )
