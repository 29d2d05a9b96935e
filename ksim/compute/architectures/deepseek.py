"""DeepSeek V2 to V4, and those that are built alike: GLM-5 and Kimi K2."""

from collections.abc import Mapping

from attrs import evolve

from ksim.compute import blocks, latent
from ksim.compute.latent import AttendCompressed, ChooseCompressed, Keep
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import op, pointwise
from ksim.compute.notation.product import HeldWeights, Product
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType

__all__ = ["deepseek_v3", "deepseek_v4", "kimi_k25", "glm_moe_dsa"]


def deepseek_v3(config: Config) -> Decoder:
    """DeepSeek-V3 and R1: latent attention, and after a few dense layers experts, some of which every token meets.

    The router's kernel takes as long with groups as without.  The layer that predicts a second token is a drafter's.
    """
    return latent.decoder(config, [latent.attention(config)] * config.need("num_hidden_layers"))


#: Layers by the tokens that become one compressed vector, and what `layer_types` calls them.
WINDOW, CHOSEN, ALL = 0, 4, 128
KINDS = {"sliding_attention": WINDOW, "compressed_sparse_attention": CHOSEN, "heavily_compressed_attention": ALL}
#: Angles, the router's kernel, and numbers inside of kernels.
OTHERS = ("compress_rope_theta", "hc_sinkhorn_iters", "hc_eps", "mlp_layer_types", "num_hash_layers")
#: Tokens of a block of compressed vectors; vLLM's blocks of windows have 64, of compressors' states 4 and 8.
BLOCK = 256
#: Letters of what each kind of compressor computes of a token, and of its positions' biases.
COMPRESSED: Mapping[int, tuple[str, str]] = {CHOSEN: ("B", "X"), ALL: ("D", "Y")}


def deepseek_v4(config: Config) -> Decoder:
    """DeepSeek-V4: attention to a window of latent vectors and to compressed ones, hyper-connections, and experts in
    all layers.

    Keys are values, too.  A compressor makes one vector of every 4 tokens, of which an indexer chooses some, or one of
    every 128, all of which count; some layers have a window alone.  Each mixer reads a mix of the hidden states that a
    token has side by side, and its result is mixed into them.

    Weights are as in transformers' modeling_deepseek_v4.py, kernels
    and caches as in vLLM (deepseek_v4/attention.py, compressor.py).  The table of the first layers' experts by token is
    left out, and so is the module that predicts a second token.  That pipeline stages hand on all hidden states of a
    token is not modelled.
    """
    for key in OTHERS:
        config.value(key)
    blocks.only(config, attention_bias=False, mlp_bias=False, num_key_value_heads=1)
    plain = config.instead({**config.table, "intermediate_size": config.need("moe_intermediate_size")})
    window, chosen = plain.need("sliding_window", 128), plain.need("index_topk", 512)
    mixture = blocks.experts(plain, shared=blocks.shared_experts(plain), corrected=True)
    layers = blocks.layers(_kinds(plain), lambda kind: (
        *_mixed("attention", _attention(window, kind, chosen)), *_mixed("mlp", mixture)))
    decoder = blocks.mixture(plain, layers, tied=False, **_sizes(plain))
    last = (op("tHm,HmO->tO", "head_mix", quantized=False, exact=True), HeldWeights("O", "head_base"),
            pointwise("hc_head", "tHm,tO->tm", "head_states"), pointwise("rms_norm", "tm->tm", "final_norm", scale="m"))
    return evolve(decoder, embedding=(*blocks.embedding(), pointwise("copy", "tm->tHm", "states_expand")),
                  head=(*last, *blocks.head()[1:]), sampled=4, quantization=_with_experts(plain, decoder.quantization))


def _with_experts(config: Config, rest: str) -> str:
    """The quantization where experts may have another format than the *rest*, vLLM's `deepseek_v4_fp8`."""
    known = {("fp8_block", "fp4"): "deepseek_v4_fp8", ("fp8_block", "fp8"): rest, ("fp8", "fp8"): rest}
    experts = config.value("expert_dtype")
    if experts is None:
        return rest
    if (rest, experts) not in known:
        raise ConfigError(f"{config.name}: expert_dtype", f"{experts!r} for experts where the rest is in {rest!r}: read"
                          " are 'fp4' and 'fp8' beside FP8 in blocks; leave it and quantization_config out of a copy,"
                          " and set the engine's quantization")
    return known[rest, experts]


def _kinds(config: Config) -> list[int]:
    """How many tokens of each layer become one vector: by `layer_types`, or `compress_ratios` with the modules'."""
    layers, ratios = config.need("num_hidden_layers"), config.get("compress_ratios", [])
    rates = config.part("compress_rates")
    blocks.only(rates, **{name: rate for name, rate in KINDS.items() if rate})
    default = ["heavily_compressed_attention" if layer < 2 or layer % 2 == 0 else "compressed_sparse_attention"
               for layer in range(layers)]
    names = {rate: name for name, rate in KINDS.items()}
    if strangers := [ratio for ratio in ratios if ratio not in names]:
        raise ConfigError(f"{config.name}: compress_ratios", f"{strangers[0]} is none of {', '.join(map(str, names))}")
    listed = [names[ratio] for ratio in ratios[:layers]] or default
    return [KINDS[kind] for kind in blocks.layer_types(config, listed, tuple(KINDS))]


def _mixed(name: str, mixer: blocks.Operations) -> blocks.Operations:
    """A *mixer* of a normed mix of the hidden states; the coefficients are of all of them, in FP32."""
    return (
        op("tHm,HmP->tP", f"{name}_mix", quantized=False, exact=True), HeldWeights("P", f"{name}_base"),
        HeldWeights("J", f"{name}_scales"), pointwise("hc_pre", "tHm,tP->tm", f"{name}_norm", scale="m"),
        *mixer,
        pointwise("hc_post", "tHm,tm,tP->tHm", f"{name}_states"),
    )


def _attention(window: int, stride: int, chosen: int) -> blocks.Operations:
    """From the normed mix to the output projection, in whose first half each group of heads has weights of its own."""
    grouped = Product("tGd,Gdv->tGv", "G", "o_groups", inputs=DType.BF16, part="attention")
    return (
        op("tm,mu->tu", "qkv_down", part="attention_inputs"),
        pointwise("rms_norm", "tq->tq", "q_norm", scale="q"),
        pointwise("rms_norm", "tc->tc", "kv_norm", scale="c"),
        op("tq,qKh->tKh", "q_up", parallel="K", part="attention_inputs"),
        pointwise("rope", "tKh,tc->tKh,tc", "qk_norm_rope", parallel="K"),
        Keep("c", "window_write", window=window, rotary="p", block_tokens=64),
        *(_compressor(stride, *COMPRESSED[stride], "c", "compress") if stride else ()),
        *((Keep("c", "compressed_write", stride, rotary="p", block_tokens=BLOCK),) if stride else ()),
        *(_indexer(stride, chosen) if stride == CHOSEN else ()),
        AttendCompressed(window, stride, chosen if stride == CHOSEN else 0),
        grouped,
        op("tGv,Gvm->tm", "o_proj", parallel="G", part="attention"),
    )


def _compressor(stride: int, both: str, biases: str, out: str, name: str) -> blocks.Operations:
    """Vectors and their weights of each token, kept until they are compressed; of 4 tokens, two runs overlap."""
    overlap = 2 if stride == CHOSEN else 1
    return (
        op(f"tm,m{both}->t{both}", f"{name}_in", quantized=False), HeldWeights(biases, f"{name}_positions"),
        Keep(both, f"{name}_state", window=overlap * stride, format=DType.FP32,
             block_tokens=4 if stride == CHOSEN else 8),
        pointwise("rms_norm", f"t{both}->t{out}", f"{name}_norm", scale=out),
    )


def _indexer(stride: int, chosen: int) -> blocks.Operations:
    """The scores of compressed keys, which have a compressor of their own; every rank computes them whole."""
    return (
        op("tq,qkj->tkj", "index_q", part="attention_inputs"),
        op("tm,mk->tk", "index_weights", quantized=False),
        pointwise("rope", "tkj->tkj", "index_rope"), pointwise("quantize", "tkj->tkj", "index_quantize", writes="fp8"),
        *_compressor(stride, "Z", "I", "j", "index_compress"),
        Keep("j", "index_write", stride, format=DType.FP8, block_tokens=BLOCK),
        ChooseCompressed(stride, chosen),
    )


def _sizes(config: Config) -> dict[str, int]:
    """The sizes of all this; a compressor of 4 tokens has two vectors of each, and as many weights."""
    heads, size, groups = config.need("num_attention_heads"), config.need("head_dim", 512), config.need("o_groups", 8)
    rank, copies = config.need("q_lora_rank", 1024), config.need("hc_mult", 4)
    factor = config.factor("partial_rotary_factor") if config.table.get("partial_rotary_factor") else 64 / 512
    rotary = config.need("qk_rope_head_dim", int(size * factor))
    if heads * size % groups:
        raise ConfigError(f"{config.name}: o_groups", f"{groups} does not divide {heads} heads of {size}")
    index = config.need("index_head_dim", 128)
    return {
        "K": heads, "r": 1, "h": size, "q": rank, "c": size, "p": rotary, "u": rank + size, "G": groups,
        "d": heads * size // groups, "v": config.need("o_lora_rank", 1024), "H": copies, "P": (2 + copies) * copies,
        "O": copies, "J": 3, "k": config.need("index_n_heads", 64), "j": index,
        "B": 4 * size, "X": CHOSEN * 2 * size, "D": 2 * size, "Y": ALL * size, "Z": 4 * index, "I": CHOSEN * 2 * index,
        "S": config.need("n_shared_experts", 1) * config.need("moe_intermediate_size"),
    }


def kimi_k25(config: Config) -> Decoder:
    """Kimi K2.5: a Kimi K2; the vision part of its configs is left out."""
    return deepseek_v3(blocks.text(config))


#: What `indexer_types` calls layers with an indexer, and without.
OWN, SHARED = "full", "shared"


def glm_moe_dsa(config: Config) -> Decoder:
    """GLM-5: DeepSeek-V3's layers, in which an indexer chooses the keys that a query attends to (DeepSeek-V3.2's).

    From GLM-5.2 on, most layers attend to what the indexer of an earlier layer chose.  The layer that predicts a second
    token is a drafter's, as there.
    """
    attention = {OWN: latent.attention(config, *latent.sparse_attention(config)),
                 SHARED: latent.attention(config, *latent.shared_choice(config))}
    return latent.decoder(config, [attention[kind] for kind in _indexers(config)], latent.sparse_sizes(config))


def _indexers(config: Config) -> list[str]:
    """Which layers have an indexer: by `indexer_types`, or from an offset on every few, as vLLM counts them."""
    every, offset = config.need("index_topk_freq", 1), config.need("index_skip_topk_offset", 2)
    layers = config.need("num_hidden_layers")
    default = [SHARED if max(layer - offset + 1, 0) % every else OWN for layer in range(layers)]
    config.value("index_share_for_mtp_iteration")  # of the drafter
    dense = min(config.count("first_k_dense_replace"), layers)
    blocks.only(config, mlp_layer_types=["dense"] * dense + ["sparse"] * (layers - dense), index_topk_pattern="")
    return blocks.layer_types(config, default, (OWN, SHARED), key="indexer_types")
