"""Google's Gemma."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import Lookup, attend, communicate, op, pointwise
from ksim.compute.notation.product import HeldWeights
from ksim.compute.vision.towers import siglip
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType

__all__ = ["gemma", "gemma2", "gemma3_text", "gemma3", "gemma3n", "gemma4"]


def gemma(config: Config) -> Decoder:
    """Gemma: a tied Llama with heads larger than its hidden size, and an embedding that is scaled."""
    layer = blocks.layer(blocks.attention(config), blocks.gated_mlp(config))
    decoder = blocks.decoder(config, [layer] * config.need("num_hidden_layers"), tied=True)
    return evolve(decoder, embedding=blocks.embedding(scaled=True))


def gemma2(config: Config) -> Decoder:
    """Gemma 2: norms before and after each block, a sliding window in every other layer, capped logits.

    The cap on attention scores runs inside the attention kernel; like the softmax's, its few FLOP a score, next
    to 4 x head_dim, are not counted.
    """
    every_other = [layer % 2 == 0 for layer in range(config.need("num_hidden_layers"))]
    decoder = blocks.decoder(config, [
        blocks.sandwich(blocks.attention(config, window), blocks.gated_mlp(config))
        for window in blocks.windows(config, every_other)], tied=True)
    return evolve(decoder, embedding=blocks.embedding(scaled=True), head=blocks.head(cap=_capped(config)))


def _capped(config: Config) -> bool:
    """Whether logits are capped: unless the config says null."""
    return config.value("final_logit_softcapping") is not None or "final_logit_softcapping" not in config.table


def gemma3_text(config: Config) -> Decoder:
    """Gemma 3's language model: Gemma 2's layers with norms of queries and keys, five of six with a window.

    `max_position_embeddings` is the stretched length already, as in vLLM.
    """
    every = config.need("sliding_window_pattern", config.need("_sliding_window_pattern", 6))
    slides = [(layer + 1) % every != 0 for layer in range(config.need("num_hidden_layers"))]
    decoder = blocks.decoder(config, blocks.layers(blocks.windows(config, slides), lambda window: blocks.sandwich(
        blocks.attention(config, window, qk_norm=True), blocks.gated_mlp(config))), tied=True)
    capped = config.value("final_logit_softcapping") is not None
    return evolve(decoder, embedding=blocks.embedding(scaled=True), head=blocks.head(cap=capped),
                  max_length=config.need("max_position_embeddings", 131_072))


def gemma3(config: Config) -> Decoder:
    """Gemma 3 from 4B on: a language model that sees, or its text part alone where a config has no other."""
    decoder, vision = gemma3_text(blocks.text(config)), config.part("vision_config")
    if not vision.table:
        return decoder
    tokens = config.need("mm_tokens_per_image", 256)
    return evolve(decoder, encoder=siglip(vision, decoder.sizes["m"], tokens))


#: Keys of no account for cost, or about images and sounds.
GEMMA3N_OTHERS = ("altup_active_idx", "altup_coef_clip", "audio_soft_tokens_per_image", "vision_soft_tokens_per_image")
#: A norm without a residual addition.
NORM = blocks.inner_norm


def gemma3n(config: Config) -> Decoder:
    """Gemma 3n: four hidden states of a token side by side (AltUp), a low-rank product beside attention (Laurel),
    embeddings of each layer's own, and keys that the last layers share.

    The parts that see and hear are left out: a convolutional network and a conformer (vllm, gemma3n.py, gemma3n_mm.py).
    """
    text = blocks.text(config)
    for key in GEMMA3N_OTHERS:
        config.value(key)
        text.value(key)
    blocks.only(text, altup_correct_scale=True, attention_bias=False, hidden_activation="gelu_pytorch_tanh")
    number, sparse = text.need("num_hidden_layers"), text.get("activation_sparsity_pattern", [])
    text = text.instead({**text.table, "intermediate_size": _same(text, "intermediate_size")})
    slides = [(layer + 1) % 5 != 0 for layer in range(number)]
    text = text.instead({"num_kv_shared_layers": 15, **text.table})
    kinds = zip(blocks.windows(text, slides), _keeps(text), [share > 0 for share in sparse] or [
        layer < 10 < number for layer in range(number)], strict=True)
    copies = text.need("altup_num_inputs", 4)
    decoder = blocks.decoder(text, blocks.layers(kinds, lambda kind: _layer(text, *kind)), tied=True, **_sizes(text))
    capped = text.value("final_logit_softcapping") is not None or "final_logit_softcapping" not in text.table
    mixed = (*_projections("unembed", copies), pointwise("altup_mean", "tHm->tm", "altup_mean"))
    return evolve(decoder, embedding=(*_layers_embedding(), *_projections("embed", copies)),
                  head=(*mixed, *blocks.head(cap=capped)), sampled=len(mixed) + 1,
                  max_length=text.need("max_position_embeddings", 32_768))


def _layer(config: Config, window: int, own: bool, sparse: bool) -> blocks.Operations:
    act = pointwise("gelu_mul_sparse" if sparse else "gelu_mul", "tgF->tF", "act", parallel="F")
    return (
        pointwise("rms_norm", "tm->tm", "router_norm", scale="m"), op("tm,mH->tH", "altup_router", part="mlp"),
        pointwise("tanh", "tH->tH", "altup_act"), op("tH,HP->tP", "altup_coefficients", part="mlp"),
        pointwise("altup_predict", "tHm,tP->tHm", "altup_predict"),
        NORM("attention_norm"),
        op("tm,mR->tR", "laurel_left", parallel="R", part="mlp"),
        op("tR,Rm->tm", "laurel_right", parallel="R", part="mlp"),
        NORM("laurel_norm"),
        *_attention(window, own), NORM("post_attention_norm"),
        pointwise("add", "tm,tm,tm->tm", "attention_add"), NORM("mlp_norm"),
        op("tm,mgF->tgF", "gate_up", parallel="F", part="mlp"), act, op("tF,Fm->tm", "down", parallel="F", part="mlp"),
        NORM("post_mlp_norm"), pointwise("add", "tm,tm->tm", "mlp_add"),
        pointwise("rms_norm", "tm->tH", "correct_router"),  # with the weights of the first
        op("tH,HO->tO", "correct_coefficients", part="mlp"),
        pointwise("altup_correct", "tHm,tm,tO->tHm,tm", "altup_correct", scale="m"),
        *_gated(), pointwise("add", "tHm,tm->tHm", "layer_add"),
    )


def _projections(name: str, copies: int) -> blocks.Operations:
    """From the first hidden state to the others, or back; each has the magnitude of the first."""
    return tuple(line for number in range(1, copies) for line in (
        op("tm,mM->tM", f"altup_{name}_{number}", parallel="M", part="mlp"),
        communicate("all_gather", "tM", f"altup_{name}_gather_{number}"),
        pointwise("altup_scale", "tM->tM", f"altup_{name}_scale_{number}")))


def _same(config: Config, key: str) -> int:
    """The number under *key* that all layers have; raises ConfigError where they differ."""
    value = config.value(key)
    numbers = value if isinstance(value, list) else [16_384 if value is None else value]
    if len({*map(str, numbers)}) != 1 or type(numbers[0]) is not int:
        raise ConfigError(f"{config.name}: {key}", f"expected one whole number for all layers, not {value!r}")
    return int(numbers[0])


def _sizes(config: Config) -> dict[str, int]:
    copies = config.need("altup_num_inputs", 4)
    return {**_embedding_sizes(config), "H": copies, "P": copies**2, "O": copies, "M": config.need("hidden_size"),
            "R": config.need("laurel_rank", 64)}


#: The index of an MLP twice as wide.
WIDE = "Ɇ"
#: Keys about images and sounds.
GEMMA4_OTHERS = ("audio_config", "vision_soft_tokens_per_image", "audio_ms_per_token", "use_bidirectional_attention",
          "enable_moe_block")


def gemma4(config: Config) -> Decoder:
    """Gemma 4: Gemma 3's layers, whose full attention has larger heads; embeddings of each layer's own, keys that the
    last layers share, or experts beside the MLP.

    Where keys are values, too (`attention_k_eq_v`), vLLM projects both, and has the weights twice (gemma4.py,
    `_gemma4_layer_weights_mapper`).  The parts that see and hear are left out.
    """
    text = blocks.text(config).under({"top_k_experts": "num_experts_per_tok"})
    for key in GEMMA4_OTHERS:
        config.value(key)
        text.value(key)
    slides = [(layer + 1) % 6 != 0 for layer in range(text.need("num_hidden_layers"))]
    wide, inner = text.get("use_double_wide_mlp", False), text.count("hidden_size_per_layer_input")
    sparse = text.value("num_experts") is not None
    layers = blocks.layers(zip(blocks.windows(text, slides), _keeps(text), strict=True), lambda kind: (
        *blocks.sandwich(_attention(kind[0], kind[1], OWN if kind[0] else OTHER),
                         (*_mlp(text, WIDE if wide and not kind[1] else "F"), *(_experts(text) if sparse else ()))),
        *((*_gated(), pointwise("add", "tm,tm->tm", "layer_add")) if inner else ())))
    make = blocks.mixture if sparse else blocks.decoder
    decoder = make(text, layers, tied=True, **_gemma4_sizes(text), **(_embedding_sizes(text) if inner else {}))
    capped = text.value("final_logit_softcapping") is not None
    text.value("vocab_size_per_layer_input")
    return evolve(decoder, head=blocks.head(cap=capped),
                  embedding=_layers_embedding() if inner else blocks.embedding(scaled=True))


def _mlp(config: Config, size: str) -> blocks.Operations:
    blocks.only(config, attention_bias=False, hidden_activation="gelu_pytorch_tanh")
    return (op(f"tm,mg{size}->tg{size}", "gate_up", parallel=size, part="mlp"),
            pointwise("gelu_mul", f"tg{size}->t{size}", "act", parallel=size),
            op(f"t{size},{size}m->tm", "down", parallel=size, part="mlp"))


def _experts(config: Config) -> blocks.Operations:
    """Experts of the hidden state before the MLP, whose results are added to the MLP's; the router norms it, too."""
    return (
        blocks.inner_norm("mlp_output_norm"), blocks.inner_norm("experts_norm"),
        pointwise("rms_norm", "tm->tm", "router_norm", scale="m"),
        *blocks.experts(config), HeldWeights("E", "expert_scale", DType.BF16),
        blocks.inner_norm("experts_output_norm"), pointwise("add", "tm,tm->tm", "experts_add"),
    )


def _gemma4_sizes(config: Config) -> dict[str, int]:
    """Those of the other shape of heads, and of the wide MLP."""
    same, heads = config.get("attention_k_eq_v", False), config.need("num_attention_heads")
    own = config.need("num_key_value_heads", heads)
    kv_heads = config.need("num_global_key_value_heads", own) if same else own
    config.value("num_global_key_value_heads")
    group = heads // kv_heads
    return {"Ķ": kv_heads, "ŗ": group, "į": group + 2, "ļ": 2 * group + 2, "ḩ": config.need("global_head_dim", 512),
            WIDE: 2 * config.need("intermediate_size")}


#: Indices of KV heads, query heads per KV head, both with keys and values, and a head's numbers; and of other layers'.
OWN, OTHER = ("K", "r", "i", "h"), ("Ķ", "ŗ", "į", "ḩ")


def _attention(window: int, own: bool, letters: tuple[str, str, str, str] = OWN) -> blocks.Operations:
    """Attention whose queries, keys and values are normed head by head; without keys of its *own*, queries alone."""
    heads, group, both, size = letters
    queries, keys = f"t{heads}{group}{size}", f"t{heads}{size}"
    if own:
        inputs: blocks.Operations = (
            op(f"tm,m{both}{heads}{size}->t{both}{heads}{size}", "qkv", parallel=heads, part="attention_inputs"),
            pointwise("rms_norm", f"{queries},{keys}->{queries},{keys}", "qk_norm", parallel=heads,
                      scale=f"{size},{size}"),
            pointwise("rope", f"{queries},{keys}->{queries},{keys}", "rope", parallel=heads),
            pointwise("rms_norm", f"{keys}->{keys}", "v_norm", parallel=heads),
            pointwise("kv_write", f"{keys},{keys}->{keys},{keys}", "kv_write", parallel=heads, writes="cache"))
    else:
        inputs = (
            op(f"tm,m{heads}{group}{size}->{queries}", "q_proj", parallel=heads, part="attention_inputs"),
            pointwise("rms_norm", f"{queries}->{queries}", "q_norm", parallel=heads, scale=size),
            pointwise("rope", f"{queries}->{queries}", "rope", parallel=heads))
    return (*inputs, attend(parallel=heads, window=window, own=own, kind=f"{heads}{group}{size}"),
            op(f"{queries},{heads}{group}{size}m->tm", "o_proj", parallel=heads, part="attention"))


def _keeps(config: Config) -> list[bool]:
    """Which layers keep keys of their own: all but the last few, which read those of the last layer of their type."""
    layers, shared = config.need("num_hidden_layers"), config.count("num_kv_shared_layers")
    return [layer < layers - shared for layer in range(layers)]


def _layers_embedding() -> blocks.Operations:
    """The embedding, and with a projection of it the rows that tokens have in a table of all layers' embeddings."""
    return (
        *blocks.embedding(scaled=True),
        Lookup("CQ->tQ", "layers_embedding", parallel="C"),
        op("tm,mQ->tQ", "layers_projection", parallel="Q", part="mlp"),
        communicate("all_gather", "tQ", "layers_gather"),
        pointwise("rms_norm", "tQ->tQ", "layers_norm", scale="e"),
        pointwise("add", "tQ,tQ->tQ", "layers_add"),
    )


def _gated() -> blocks.Operations:
    """A layer's own embedding, gated by the hidden state and projected; every rank computes it whole."""
    return (
        op("tm,me->te", "layer_gate", part="mlp"), pointwise("gelu_mul", "te,te->te", "layer_act"),
        op("te,em->tm", "layer_projection", part="mlp"), blocks.inner_norm("post_layer_norm"),
    )


def _embedding_sizes(config: Config) -> dict[str, int]:
    """The sizes of the layers' own embeddings."""
    size = config.need("hidden_size_per_layer_input", 256)
    return {"e": size, "Q": size * config.need("num_hidden_layers"),
            "C": config.need("vocab_size_per_layer_input", 262_144)}
