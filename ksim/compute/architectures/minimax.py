"""MiniMax's models."""

from ksim.compute import blocks, recurrent
from ksim.compute.latent import AttendBlocks, Keep
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import op, pointwise
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType

__all__ = ["minimax_text_01", "minimax_m2", "minimax_m3"]


def minimax_text_01(config: Config) -> Decoder:
    """MiniMax-Text-01 and M1: lightning attention in seven of eight layers, attention in one, and experts in all.

    vLLM served them up to 0.22.  Queries, keys and values of lightning attention pass through SiLU in FP32; its output
    has one norm over all heads, for which ranks add up squares, and a gate with a projection of its own.  The factors
    of residuals run inside other kernels.
    """
    blocks.only(config, postnorm=True)
    if config.value("shared_intermediate_size"):
        blocks.only(config, shared_intermediate_size=0)
    mixers = {0: lightning(config.need("block", 256)), 1: blocks.attention(config)}
    layers = blocks.layers(_kinds(config), lambda kind: blocks.layer(mixers[kind], blocks.experts(config, exact=True)))
    heads = config.need("num_attention_heads")
    return blocks.mixture(config, layers, tied=False, G=heads, o=1, e=config.need("head_dim"), J=3, A=1)


def _kinds(config: Config) -> list[int]:
    """Of each layer, 0 for lightning attention and 1 for attention."""
    kinds, layers = config.get("attn_type_list", []), config.need("num_hidden_layers")
    if len(kinds) != layers or any(kind not in (0, 1) for kind in kinds):
        raise ConfigError(f"{config.name}: attn_type_list", f"expected {layers} times 0 or 1")
    return kinds


def lightning(chunk: int) -> blocks.Operations:
    """Lightning attention, from the normed hidden state to the output projection."""
    return (
        op("tm,mJGe->tJGe", "qkv", parallel="G", part="attention_inputs"),
        pointwise("silu", "tJGe->tJGe", "qkv_act", parallel="G", writes="fp32"),
        recurrent.AttendLightning(chunk),
        recurrent.SharedSquares(always=True),
        pointwise("rms_norm", "tGe->tGe", "lightning_norm", parallel="G", scale="Ge"),
        op("tm,mGe->tGe", "output_gate", parallel="G", part="attention_inputs"),
        pointwise("sigmoid_mul", "tGe,tGe->tGe", "gate", parallel="G"),
        op("tGe,Gem->tm", "out_proj", parallel="G", part="attention"),
    )


def minimax_m2(config: Config) -> Decoder:
    """MiniMax-M2: experts in all layers, and a norm over all query heads at once and over all key heads.

    The router computes in FP32, and ranks add up squares before they norm (vllm/model_executor/models/minimax_m2.py).
    Rotary embeddings of half a head are taken to move as much as those of a whole one: the kernel passes over all of
    it.
    """
    blocks.only(config, qk_norm_type="per_layer", shared_intermediate_size=0)
    if {*config.get("attn_type_list", [1])} != {1}:
        raise ConfigError(f"{config.name}: attn_type_list", "only full attention in all layers (1) is modelled")
    attention = blocks.attention(config, wide_norm=config.get("use_qk_norm", True))
    layer = blocks.layer(attention, blocks.experts(config, exact=True, corrected=config.get("use_routing_bias", True)))
    return blocks.mixture(config, [layer] * config.need("num_hidden_layers"))


#: Keys about images, what other keys say once more, and numbers inside of kernels.
OTHERS = ("vision_config", "projector_hidden_size", "swiglu_alpha", "swiglu_beta", "image_seq_length",
          "img_token_compression_config", "process_image_mode", "merged_hidden_size")
#: What `layer_types` and `mlp_layer_types` call sparse layers.
SPARSE_ATTENTION, SPARSE = "minimax_m3_sparse", "sparse"
#: How `sparse_attention_config` calls what others call otherwise, with the size that MiniMax-M3 has.
INDEXER = {"index_n_heads": ("sparse_num_index_heads", 4), "index_head_dim": ("sparse_index_dim", 128),
           "index_block_size": ("sparse_block_size", 128), "index_topk_blocks": ("sparse_topk_blocks", 16)}


def minimax_m3(config: Config) -> Decoder:
    """MiniMax-M3: a few layers with full attention and MLPs, then attention to chosen blocks of keys, and experts
    beside a shared one.

    One product projects queries, keys, values and those of the indexer; norms are of each head (vLLM,
    minimax_m3/nvidia/model.py).  The vision part of its configs is left out.
    """
    text = blocks.text(config)
    for key in OTHERS:
        config.value(key)
        text.value(key)
    blocks.only(text, use_gemma_norm=True, attention_output_gate=False, use_qk_norm=True, qk_norm_type="per_head",
                attention_bias=False, n_shared_experts=1)
    inner = text.part("sparse_attention_config")
    for key in ("use_sparse_attention", "sparse_init_block", "sparse_local_block", "sparse_score_type",
                "sparse_disable_index_value"):
        inner.value(key)
    text.value("index_local_blocks")
    index = {new: text.need(new, inner.need(old, size)) for new, (old, size) in INDEXER.items()}
    if index["index_n_heads"] != (heads := text.need("num_key_value_heads")):
        raise ConfigError(f"{text.name}: index_n_heads", f"expected one for each of {heads} key/value heads")
    kinds = zip(_minimax_m3_kinds(text, inner, "layer_types", "sparse_attention_freq", SPARSE_ATTENTION),
                _minimax_m3_kinds(text, text, "mlp_layer_types", "moe_layer_freq", SPARSE), strict=True)
    mixers = {False: blocks.attention(text, qk_norm=True), True: _attention(index)}
    mlps = {False: blocks.gated_mlp(text), True: blocks.experts(
        text, shared=blocks.shared_experts(text), exact=True, corrected=text.get("use_routing_bias", True))}
    layers = blocks.layers(kinds, lambda kind: blocks.layer(mixers[kind[0]], mlps[kind[1]]))
    size, expert = index["index_head_dim"], text.need("intermediate_size")
    return blocks.mixture(text, layers, tied=False, j=size, a=heads * size + size,
                          S=text.need("shared_intermediate_size", expert), F=text.need("dense_intermediate_size"))


def _minimax_m3_kinds(config: Config, inner: Config, key: str, old: str, name: str) -> list[bool]:
    """Which layers are sparse: by *key*, or by ones under *old* in the table *inner*; else all but the first three."""
    layers = config.need("num_hidden_layers")
    listed, ones = config.value(key), inner.get(old, [])
    kinds = [kind == name for kind in listed] if listed else [bool(one) for one in ones] or [
        layer >= 3 for layer in range(layers)]
    if len(kinds) != layers:
        raise ConfigError(f"{config.name}: {key if listed else old}", f"expected {layers} layers, not {len(kinds)}")
    return kinds


def _attention(index: dict[str, int]) -> blocks.Operations:
    """From the normed hidden state to the output projection; every rank has the indexer's one key."""
    return (
        op("tm,miKh->tiKh", "qkv", parallel="K", part="attention_inputs"),
        op("tm,mKj->tKj", "index_q", parallel="K", part="attention_inputs"),
        op("tm,mj->tj", "index_k", part="attention_inputs"),
        *blocks.HEAD_NORM, *blocks.ROPE,
        pointwise("rms_norm", "tKj,tj->tKj,tj", "index_norm", parallel="K", scale="j,j"),
        pointwise("rope", "tKj,tj->tKj,tj", "index_rope", parallel="K"),
        pointwise("kv_write", "tKh,tKh->tKh,tKh", "kv_write", parallel="K", writes="cache"),
        Keep("j", "index_write", format=DType.BF16),
        AttendBlocks(index["index_topk_blocks"], index["index_block_size"]),
        op("tKrh,Krhm->tm", "o_proj", parallel="K", part="attention"),
    )
