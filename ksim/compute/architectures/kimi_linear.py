"""Moonshot's Kimi Linear and Kimi K3."""

from math import ceil

from attrs import evolve

from ksim.compute import blocks, latent
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import op, pointwise
from ksim.compute.notation.communicate import RECEIVED, SENT, Combine, Dispatch
from ksim.compute.notation.pointwise import Elementwise
from ksim.compute.recurrent import AttendLinear
from ksim.foundation.errors import ConfigError

__all__ = ["kimi_linear", "kimi_k3"]


#: Kimi's names, and DeepSeek's.
NAMES = {"num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts",
         "model_max_length": "max_position_embeddings"}
#: Numbers of K3's activation and of its gates, inside of kernels.
OTHERS = ("activation_situ_beta", "activation_situ_linear_beta", "head_dim")


def kimi_linear(config: Config) -> Decoder:
    """Kimi Linear and Kimi K3's language model: Kimi Delta Attention in three of four layers, latent attention without
    rotary embeddings in the fourth, and DeepSeek-V3's experts.

    vLLM projects queries, keys, values, their weights and the ranks of both gates in one product
    (kimi_gdn_linear_attn.py). K3 gates what either attention returns, has experts of a latent vector, and attends to
    the hidden states after earlier blocks of layers before each norm (attention residuals; vLLM,
    kimi_k3/nvidia/model.py).  That pipeline stages hand these states on, too, is not modelled.
    """
    blocks.only(config, mla_use_nope=True, moe_layer_freq=1, attention_bias=False)
    for key in OTHERS:
        config.value(key)
    linear, plain = config.part("linear_attn_config"), config.under(NAMES)
    plain = plain.instead({"head_dim": plain.need("v_head_dim"), **plain.table})  # of no account beside latent ones
    linear.value("gate_lower_bound")
    gated = linear.get("use_full_rank_gate", False)
    mixers = {True: _latent_attention(plain), False: delta_attention(gated)}
    dense, every = plain.count("first_k_dense_replace"), plain.count("attn_res_block_size")
    mlps = {True: blocks.gated_mlp(plain), False: _experts(plain)}
    layers = blocks.layers(
        ((attends, number < dense, *_earlier(number, every)) for number, attends in enumerate(_attends(plain, linear))),
        lambda kind: (_norm("attention_norm", kind[2], every), *mixers[kind[0]],
                      _norm("mlp_norm", kind[3], every), *mlps[kind[1]]))
    heads, size, shared = linear.need("num_heads"), linear.need("head_dim"), plain.need("n_shared_experts")
    decoder = blocks.mixture(
        plain, layers, tied=False, S=shared * plain.need("moe_intermediate_size"),
        **latent.sizes(plain), G=heads, o=1, e=size, Y=3, J=4 if gated else 3, R=size,
        W=linear.need("short_conv_kernel_size"), A=1, L=plain.count("routed_expert_hidden_size") or 1)
    return evolve(decoder, head=blocks.head(last=_norm("final_norm", ceil(len(layers) / every), every))
                  if every else decoder.head)


def _earlier(layer: int, every: int) -> tuple[int, int]:
    """How many blocks of layers the attention and the MLP of a *layer* look back to; each block ends with a few."""
    before = ceil(layer / every) if every else 0
    return before, before + bool(every and layer % every == 0)


def _norm(label: str, earlier: int, every: int) -> Elementwise:
    """The norm before a mixer; with attention residuals it weighs the states after *earlier* blocks before it."""
    if not every:
        return blocks.norm(label)
    return pointwise("attn_res", f"tm,tm{',tm' * earlier}->tm,tm", label, scale="m,m,m")


def _latent_attention(config: Config) -> blocks.Operations:
    """Latent attention without rotary embeddings, whose output may be gated."""
    *inner, last = (line for line in latent.attention(config) if line.label != "rope")
    gate = (op("tm,mKv->tKv", "output_gate", parallel="K", part="attention_inputs"),
            pointwise("sigmoid_mul", "tKv,tKv->tKv", "gate", parallel="K"))
    return *inner, *(gate if config.get("mla_use_output_gate", False) else ()), last


def delta_attention(full_rank_gate: bool = False) -> blocks.Operations:
    """Kimi Delta Attention, from the normed hidden state to the output projection.

    Gates of outputs have a low rank, as decays have, or are projected beside queries, keys and values.
    """
    gates = (op("tm,mR->tR", "decay_down", part="attention_inputs") if full_rank_gate else
             op("tm,mgR->tgR", "gates_down", part="attention_inputs"))
    output_gate = op("tR,RGe->tGe", "output_gate", parallel="G", part="attention_inputs")
    return (
        op("tm,mJGe->tJGe", "qkv", parallel="G", part="attention_inputs"),
        op("tm,mG->tG", "beta", parallel="G", part="attention_inputs"),
        gates,
        op("tR,RGe->tGe", "decay_up", parallel="G", part="attention_inputs"),
        AttendLinear(by_channel=True),
        *(() if full_rank_gate else (output_gate,)),
        pointwise("rms_norm_gated", "tGe,tGe->tGe", "delta_norm", parallel="G", scale="e"),
        op("tGe,Gem->tm", "o_proj", parallel="G", part="attention"),
    )


def _experts(config: Config) -> blocks.Operations:
    """Experts beside shared ones; of a latent vector, every rank projects it, and norms and projects back their sum.

    Those projections are stored as shared experts are: what quantizes routed experts alone leaves both in BF16.
    """
    corrected = config.get("topk_method", "noaux_tc") == "noaux_tc"
    if not config.count("routed_expert_hidden_size"):
        return blocks.experts(config, shared=blocks.shared_experts(config), corrected=corrected)
    act = blocks.ACTIVATIONS[config.get("hidden_act", "silu")]
    norm = pointwise("rms_norm", "tL->tL", "latent_norm", scale="L")
    return (
        op("tm,mE->tE", "router", quantized=False), *(blocks.CORRECTION if corrected else ()),
        op("tm,mgS->tgS", "shared_gate_up", parallel="S", part="shared_experts"),
        pointwise(act, "tgS->tS", "shared_act", parallel="S"),
        op("tS,Sm->tm", "shared_down", parallel="S", part="shared_experts"),
        op("tm,mL->tL", "latent_in", part="shared_experts"),
        Dispatch(hidden="L"),
        pointwise("topk", "TE->x", "topk", reads="fp32", writes="fp32", tokens=SENT),
        op("TL,ELgf->xgf", "experts_gate_up", parallel="f", routed="E", part="experts"),
        pointwise(act, "xgf->xf", "experts_act", parallel="f"),
        op("xf,EfL->xL", "experts_down", parallel="f", routed="E", part="experts"),
        pointwise("moe_combine", "xL->TL", "combine", tokens=RECEIVED),
        Combine(hidden="L"),
        *((norm,) if config.get("latent_moe_use_norm", False) else ()),
        op("tL,Lm->tm", "latent_out", part="shared_experts"), pointwise("add", "tm,tm->tm", "shared_add"),
    )


def _attends(config: Config, linear: Config) -> list[bool]:
    """Which layers have latent attention: those that are listed, from 1 on."""
    full, rest = ({*linear.get(key, [])} for key in ("full_attn_layers", "kda_layers"))
    layers = range(1, config.need("num_hidden_layers") + 1)
    if full & rest or full | rest != {*layers}:
        raise ConfigError(f"{linear.name}: full_attn_layers", f"expected each of {len(layers)} layers here or in"
                                                              " kda_layers")
    return [layer in full for layer in layers]


def kimi_k3(config: Config) -> Decoder:
    """Kimi K3: a Kimi Linear of 93 layers with experts of a latent vector; the vision part of its configs is left
    out.
    """
    config.value("image_placeholder")
    return kimi_linear(blocks.text(config))
