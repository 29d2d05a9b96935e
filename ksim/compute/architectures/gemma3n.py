"""Gemma 3n: four hidden states of a token side by side (AltUp), a low-rank product beside attention (Laurel),
embeddings of each layer's own, and keys that the last layers share.

The parts that see and hear are left out: a convolutional network and a conformer (vllm, gemma3n.py, gemma3n_mm.py).
"""

from attrs import evolve

from ksim.compute import blocks, per_layer
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import communicate, op, pointwise
from ksim.foundation.errors import ConfigError

__all__ = ["gemma3n"]

#: Keys of no account for cost, or about images and sounds.
OTHERS = ("altup_active_idx", "altup_coef_clip", "audio_soft_tokens_per_image", "vision_soft_tokens_per_image")
#: A norm without a residual addition.
NORM = blocks.inner_norm


def gemma3n(config: Config) -> Decoder:
    text = blocks.text(config)
    for key in OTHERS:
        config.value(key)
        text.value(key)
    blocks.only(text, altup_correct_scale=True, attention_bias=False, hidden_activation="gelu_pytorch_tanh")
    number, sparse = text.need("num_hidden_layers"), text.get("activation_sparsity_pattern", [])
    text = text.instead({**text.table, "intermediate_size": _same(text, "intermediate_size")})
    slides = [(layer + 1) % 5 != 0 for layer in range(number)]
    text = text.instead({"num_kv_shared_layers": 15, **text.table})
    kinds = zip(blocks.windows(text, slides), per_layer.keeps(text), [share > 0 for share in sparse] or [
        layer < 10 < number for layer in range(number)], strict=True)
    copies = text.need("altup_num_inputs", 4)
    decoder = blocks.decoder(text, blocks.layers(kinds, lambda kind: _layer(text, *kind)), tied=True, **_sizes(text))
    capped = text.value("final_logit_softcapping") is not None or "final_logit_softcapping" not in text.table
    mixed = (*_projections("unembed", copies), pointwise("altup_mean", "tHm->tm", "altup_mean"))
    return evolve(decoder, embedding=(*per_layer.embedding(), *_projections("embed", copies)),
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
        *per_layer.attention(window, own), NORM("post_attention_norm"),
        pointwise("add", "tm,tm,tm->tm", "attention_add"), NORM("mlp_norm"),
        op("tm,mgF->tgF", "gate_up", parallel="F", part="mlp"), act, op("tF,Fm->tm", "down", parallel="F", part="mlp"),
        NORM("post_mlp_norm"), pointwise("add", "tm,tm->tm", "mlp_add"),
        pointwise("rms_norm", "tm->tH", "correct_router"),  # with the weights of the first
        op("tH,HO->tO", "correct_coefficients", part="mlp"),
        pointwise("altup_correct", "tHm,tm,tO->tHm,tm", "altup_correct", scale="m"),
        *per_layer.gated(), pointwise("add", "tHm,tm->tHm", "layer_add"),
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
    return {**per_layer.sizes(config), "H": copies, "P": copies**2, "O": copies, "M": config.need("hidden_size"),
            "R": config.need("laurel_rank", 64)}
