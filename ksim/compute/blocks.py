"""Parts that many architectures share, from a layer's attention to the whole decoder.

Parts of models in the manner of GPT: LayerNorms with biases, MLPs without a gate, learned positions.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache

from attrs import evolve

from ksim.compute.config import (
    FULL,
    SLIDING,
    late_windows,
    layer_types,
    max_length,
    only,
    rotary,
    sizes,
    sparse,
    text,
    windows,
)
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import Lookup, communicate, op, pointwise
from ksim.compute.model_ops import attend as windowed
from ksim.compute.notation import Operation
from ksim.compute.notation.communicate import RECEIVED, SENT, Combine, Dispatch
from ksim.compute.notation.pointwise import Elementwise
from ksim.compute.notation.product import HeldWeights
from ksim.compute.quantization import layers_as_stored, stored
from ksim.foundation.errors import ConfigError

__all__ = ["ACTIVATIONS", "FULL", "SLIDING", "Operations", "attention", "decoder", "embedding", "expert_sizes",
           "experts", "gated_mlp", "head", "inner_norm", "late_windows", "layer", "layer_types", "layers",
           "max_length", "mixture", "norm", "only", "post_norm", "rotary", "sandwich", "shared_experts", "sizes",
           "sparse", "text", "windows", "PLAIN", "layer_norm_layer", "layer_norm", "parallel_layer", "plain_mlp",
           "positions"]


Operations = tuple[Operation, ...]

#: `hidden_act`, and the kernel that applies it to the gate and multiplies by up.
ACTIVATIONS = {"silu": "silu_mul", "gelu": "gelu_mul", "gelu_pytorch_tanh": "gelu_mul", "situ": "situ_mul",
               "swigluoai": "silu_mul"}


def decoder(
    config: Config, layers: Sequence[Operations], *, tied: bool = False, top_k: int = 0, **more: int
) -> Decoder:
    """The whole model; *tied* is the default of `tie_word_embeddings`, *more* are sizes of further indices.

    Raises ConfigError for an unknown quantization of the weights.
    """
    checkpoint = stored(config)
    layers = layers_as_stored(layers, checkpoint)
    unique: dict[Operations, Operations] = {}  # equal layers become one object, which compares faster
    objects = {id(layer): layer for layer in layers}.values()
    shared = {id(layer): unique.setdefault(layer, layer) for layer in objects}
    return Decoder(
        sizes={**sizes(config), **more}, embedding=embedding(), layers=tuple(shared[id(layer)] for layer in layers),
        head=head(), max_length=max_length(config), tied=config.get("tie_word_embeddings", tied), top_k=top_k,
        quantization=checkpoint.quantization, unquantized=checkpoint.unquantized,
        kv_cache_dtype=checkpoint.kv_cache_dtype)


def mixture(config: Config, layers: Sequence[Operations], *, tied: bool = False, **more: int) -> Decoder:
    """A decoder with a mixture of experts; the rest is as for `decoder`."""
    size, top_k = expert_sizes(config), config.need(_first(config, CHOSEN))
    if top_k > size["E"]:
        raise ConfigError(f"{config.name}: {_first(config, CHOSEN)}", f"{top_k} is more than the {size['E']} experts")
    whole = decoder(config, layers, tied=tied, top_k=top_k, **size, **more)
    return evolve(whole, groups=_groups(config, size["E"]))


def _groups(config: Config, experts: int) -> tuple[int, int]:
    """The groups that *experts* are divided into, and how many of them a token's experts are in."""
    groups, chosen = config.get("n_group", 1) or 1, config.get("topk_group", 1) or 1
    if groups < chosen or experts % groups:
        raise ConfigError(f"{config.name}: n_group", f"{experts} experts in {groups} groups, of which a token chooses"
                                                     f" {chosen}: expected groups of equal size, and no more chosen")
    return groups, chosen


def norm(label: str) -> Elementwise:
    """RMSNorm fused with the residual addition before it; hidden state and residual are read and written."""
    return pointwise("fused_add_rms_norm", "tm,tm->tm,tm", label, scale="m")


def inner_norm(label: str) -> Elementwise:
    """RMSNorm of the output of attention or MLP, before the residual addition."""
    return pointwise("rms_norm", "tm->tm", label, scale="m")


def post_norm(label: str) -> Elementwise:
    """RMSNorm of the output of attention or MLP, and the residual addition after it, in one kernel."""
    return pointwise("fused_add_rms_norm", "tm,tm->tm", label, scale="m")


def sandwich(attention: Operations, mlp: Operations) -> Operations:
    """A layer with norms before and after *attention* and *mlp*."""
    return (norm("attention_norm"), *attention, inner_norm("post_attention_norm"),
            norm("mlp_norm"), *mlp, inner_norm("post_mlp_norm"))


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


#: The same over all heads at once, for which ranks gather queries and keys.
GATHERED_NORM = (communicate("all_gather", "tKrh", "q_gather"), communicate("all_gather", "tKh", "k_gather"),
                 pointwise("rms_norm", "tKrh,tKh->tKrh,tKh", "qk_norm", scale="Krh,Kh"))


#: Rotary embeddings of queries and keys.
ROPE = (pointwise("rope", "tKrh,tKh->tKrh,tKh", "rope", parallel="K"),)


def attention(config: Config, window: int = 0, *, qk_norm: bool = False, wide_norm: bool = False,
              sinks: bool = False, gated: bool = False, qkv_bias: bool = False, out_bias: bool | None = None,
              before: Operations | None = None, attend: Operation | None = None, reduced: bool = True) -> Operations:
    """Grouped-query attention, from the normed hidden state to the output projection.

    *gated* outputs are multiplied by gates, which the first projection computes too.  *qkv_bias* is a bias of that
    projection, and *out_bias* of the last one, where config.json does not mention it.  *before* attention queries and
    keys are normed and rotated, unless it says otherwise; *attend* replaces attention over the *window*.  Without
    *reduced*, a later operation adds up the partial sums of the ranks.
    """
    bias = config.get("attention_bias", False)
    norms = WIDE_NORM if wide_norm else HEAD_NORM if qk_norm else ()
    return (
        op("tm,mlKh->tlKh" if gated else "tm,miKh->tiKh", "qkv", parallel="K", bias=bias or qkv_bias,
           part="attention_inputs"),
        *((*norms, *ROPE) if before is None else before),
        pointwise("kv_write", "tKh,tKh->tKh,tKh", "kv_write", parallel="K", writes="cache"),
        attend or windowed(window=window, sinks=sinks),
        *((pointwise("sigmoid_mul", "tKrh,tKrh->tKrh", "gate", parallel="K"),) if gated else ()),
        op("tKrh,Krhm->tm", "o_proj", parallel="K", bias=bias if out_bias is None else out_bias, part="attention",
           reduced=reduced),
    )


def gated_mlp(config: Config, *, reduced: bool = True) -> Operations:
    """An MLP whose activation multiplies two projections of the normed hidden state."""
    bias = config.get("mlp_bias", False)
    return (
        op("tm,mgF->tgF", "gate_up", parallel="F", bias=bias, part="mlp"),
        pointwise(_activation(config), "tgF->tF", "act", parallel="F"),
        op("tF,Fm->tm", "down", parallel="F", bias=bias, part="mlp", reduced=reduced),
    )


#: What configs call the number of experts, how many of them a token goes to, and the size of one.
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "experts_per_token", "moe_k")
EXPERT_SIZE = ("moe_intermediate_size", "intermediate_size")


def expert_sizes(config: Config) -> dict[str, int]:
    """The sizes of a mixture of experts."""
    return {"E": config.need(_first(config, EXPERTS)), "f": config.need(_first(config, EXPERT_SIZE))}


def _first(config: Config, keys: Sequence[str]) -> str:
    """The first of *keys* that the config has, or else the first."""
    return next((key for key in keys if config.value(key) is not None), keys[0])


#: A number that is added to the score of each expert for the choice alone, and balances their load.
CORRECTION = (HeldWeights("E", "router_correction"),)


def experts(config: Config, *, bias: bool = False, shared: Operations = (), exact: bool = False,
            corrected: bool = False) -> Operations:
    """A mixture of experts: route, dispatch tokens to their experts, compute, and combine each token's results.

    *shared* experts see all tokens; their partial sums join the all-reduce.  An *exact* router is in FP32.  The choice
    of experts may be *corrected* by a number for each.
    """
    return (
        op("tm,mE->tE", "router", bias=bias, quantized=False, exact=exact),
        *(CORRECTION if corrected else ()),
        *shared,
        Dispatch(),
        pointwise("topk", "TE->x", "topk", reads="fp32", writes="fp32", tokens=SENT),
        op("Tm,Emgf->xgf", "experts_gate_up", parallel="f", routed="E", bias=bias, part="experts"),
        pointwise(_activation(config), "xgf->xf", "experts_act", parallel="f"),
        op("xf,Efm->xm", "experts_down", parallel="f", routed="E", bias=bias, part="experts"),
        pointwise("moe_combine", "xm->Tm", "combine", tokens=RECEIVED),
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
    act, first = config.get("hidden_act", "silu"), config.get("hidden_activation", "")
    if (name := first or act) not in ACTIVATIONS:
        key = "hidden_activation" if first else "hidden_act"
        raise ConfigError(f"{config.name}: {key}", f"{name!r} is none of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def embedding(scaled: bool = False) -> Operations:
    """The rows of the tokens in the table of the vocabulary, *scaled* or not."""
    scale = (pointwise("scale", "tm->tm", "embedding_scale"),) if scaled else ()
    return (Lookup("Vm->tm", "embedding", parallel="V"), *scale)


def head(cap: bool = False, *, scaled: bool = False, bias: bool = False, last: Operation | None = None) -> Operations:
    """The *last* norm, the logits of each sequence's last token, *scaled* and capped or not, and greedy sampling."""
    softcap = (pointwise("softcap", "sV->sV", "logits_softcap"),) if cap else ()
    scale = (pointwise("scale", "sV->sV", "logits_scale"),) if scaled else ()
    return (
        last or norm("final_norm"),
        op("sm,mV->sV", "lm_head", parallel="V", quantized=False, bias=bias),
        communicate("all_gather", "sV", "logits_gather"),
        *softcap,
        *scale,
        pointwise("cast", "sV->sV", "logits_cast", writes="fp32"),
        pointwise("argmax", "sV->s", "sample", reads="fp32", writes="fp32"),
    )


#: Activations of one projection, and the kernels that apply them.
PLAIN = {"gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu",
         "relu2": "relu2"}


def layer_norm(label: str) -> Elementwise:
    """LayerNorm with a bias, fused with the residual addition before it, as the compiler fuses them."""
    return pointwise("fused_add_layer_norm", "tm,tm->tm,tm", label, scale="m,m")


def layer_norm_layer(attention: Operations, mlp: Operations) -> Operations:
    """A layer with a norm before *attention* and one before *mlp*."""
    return (layer_norm("attention_norm"), *attention, layer_norm("mlp_norm"), *mlp)


def parallel_layer(attention: Operations, mlp: Operations) -> Operations:
    """A layer whose *attention* and *mlp* have norms of the same hidden state; their results are added up."""
    both = pointwise("layer_norm", "tm->tm,tm", "norms", scale="mg,mg")
    return (both, *attention, *mlp, pointwise("add", "tm,tm,tm->tm", "residual_add"))


def plain_mlp(config: Config, act: str, *, bias: bool = True) -> Operations:
    """An MLP of two projections with the activation *act* between them; raises ConfigError for one that is unknown."""
    if act not in PLAIN:
        raise ConfigError(f"{config.name}: activation", f"{act!r} is none of {', '.join(PLAIN)}")
    return (
        op("tm,mF->tF", "up", parallel="F", bias=bias, part="mlp"),
        pointwise(PLAIN[act], "tF->tF", "act", parallel="F"),
        op("tF,Fm->tm", "down", parallel="F", bias=bias, part="mlp"),
    )


def positions() -> Operations:
    """The rows of the tokens' positions in a table of C learned ones, which every rank has."""
    return (Lookup("Cm->tm", "positions"), pointwise("add", "tm,tm->tm", "positions_add"))
