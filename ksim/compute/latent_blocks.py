"""Parts that models with multi-head latent attention share, from attention to the whole decoder."""

from collections.abc import Mapping
from types import MappingProxyType

from ksim.compute import blocks
from ksim.compute.einsum import Map, Operation, op
from ksim.compute.kernels.index_scores import SCALE
from ksim.compute.latent import AttendLatent, AttendSparse
from ksim.compute.model import Config, Decoder


def decoder(config: Config, attention: blocks.Operations, more: Mapping[str, int] = MappingProxyType({})) -> Decoder:
    """The whole of a model with latent *attention*, a few dense layers, and in the others experts routed and shared.

    *more* are sizes of further indices.
    """
    blocks.only(config, moe_layer_freq=1, attention_bias=False)
    dense, size = config.count("first_k_dense_replace"), config.need("moe_intermediate_size")
    mixture = blocks.experts(config, shared=blocks.shared_experts(config))
    return blocks.mixture(
        config,
        [
            (
                blocks.norm("attention_norm"),
                *attention,
                blocks.norm("mlp_norm"),
                *(blocks.gated_mlp(config) if layer < dense else mixture),
            )
            for layer in range(config.need("num_hidden_layers"))
        ],
        tied=False,
        S=size * config.need("n_shared_experts"),
        **sizes(config),
        **more,
    )


def attention(config: Config, *attend: Operation) -> blocks.Operations:
    """Multi-head latent attention from the normed hidden state back to it; sizes are `sizes`.

    The projections down, of queries and of keys and values, are one product, which every rank computes, as in vLLM.
    Attention is to all keys, or what the operations *attend* say.
    """
    return (
        op("tm,mu->tu", "qkv_down", part="attention"),
        Map("rms_norm", "tq->tq", "q_norm", scale="q"),
        Map("rms_norm", "tc->tc", "kv_norm", scale="c"),
        op("tq,qKd->tKd", "q_up", parallel="K", part="attention"),
        Map("rope", "tKp,tp->tKp,tp", "rope", parallel="K"),
        Map("kv_write", "tb->tb", "kv_write", writes="cache"),
        *(attend or (AttendLatent(),)),
        op("tKv,Kvm->tm", "o_proj", parallel="K", part="attention"),
    )


def sparse_attention(config: Config) -> blocks.Operations:
    """Latent attention to the keys that a lightning indexer chooses, which every rank computes whole, as in vLLM."""
    return (
        op("tq,qkj->tkj", "index_q", part="attention"),
        op("tm,ma->ta", "index_k", quantized=False),
        Map("layer_norm", "tj->tj", "index_norm", scale="j,j"),
        Map("rope", "tkj,tj->tkj,tj", "index_rope"),
        Map("quantize", "tkj->tkj", "index_quantize", writes="fp8"),
        Map("kv_write", "tj->ty", "index_write", writes="fp8"),
        AttendSparse(config.need("index_topk")),
    )


def sparse_sizes(config: Config) -> dict[str, int]:
    """The indices of the indexer, by their usual names in config.json."""
    heads, size = config.need("index_n_heads"), config.need("index_head_dim")
    return {"k": heads, "j": size, "a": size + heads, "y": size + SCALE}


def sizes(config: Config) -> dict[str, int]:
    """The indices of latent attention, by their usual names in config.json."""
    rank, latent = config.need("q_lora_rank"), config.need("kv_lora_rank")
    content, rotary = config.need("qk_nope_head_dim"), config.need("qk_rope_head_dim")
    value, kept = config.need("v_head_dim"), latent + rotary
    return {"q": rank, "c": latent, "p": rotary, "n": content, "v": value, "b": kept, "u": rank + kept,
            "d": content + rotary, "w": content + value}
