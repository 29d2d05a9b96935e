"""Gemma 4: Gemma 3's layers, whose full attention has larger heads; embeddings of each layer's own, keys that the last
layers share, or experts beside the MLP.

Where keys are values, too (`attention_k_eq_v`), vLLM projects both, and has the weights twice (gemma4.py,
`_gemma4_layer_weights_mapper`).  The parts that see and hear are left out.
"""

from attrs import evolve

from ksim.compute import blocks, per_layer
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import op, pointwise
from ksim.compute.notation.held import Held
from ksim.foundation.units import DType

__all__ = ["gemma4"]

#: The index of an MLP twice as wide.
WIDE = "Ɇ"
#: Keys about images and sounds.
OTHERS = ("audio_config", "vision_soft_tokens_per_image", "audio_ms_per_token", "use_bidirectional_attention",
          "enable_moe_block")


def gemma4(config: Config) -> Decoder:
    text = blocks.text(config).under({"top_k_experts": "num_experts_per_tok"})
    for key in OTHERS:
        config.value(key)
        text.value(key)
    slides = [(layer + 1) % 6 != 0 for layer in range(text.need("num_hidden_layers"))]
    wide, inner = text.get("use_double_wide_mlp", False), text.count("hidden_size_per_layer_input")
    sparse = text.value("num_experts") is not None
    layers = blocks.layers(zip(blocks.windows(text, slides), per_layer.keeps(text), strict=True), lambda kind: (
        *blocks.sandwich(per_layer.attention(kind[0], kind[1], per_layer.OWN if kind[0] else per_layer.OTHER),
                         (*_mlp(text, WIDE if wide and not kind[1] else "F"), *(_experts(text) if sparse else ()))),
        *((*per_layer.gated(), pointwise("add", "tm,tm->tm", "layer_add")) if inner else ())))
    make = blocks.mixture if sparse else blocks.decoder
    decoder = make(text, layers, tied=True, **_sizes(text), **(per_layer.sizes(text) if inner else {}))
    capped = text.value("final_logit_softcapping") is not None
    text.value("vocab_size_per_layer_input")
    return evolve(decoder, head=blocks.head(cap=capped),
                  embedding=per_layer.embedding() if inner else blocks.embedding(scaled=True))


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
        *blocks.experts(config), Held("E", "expert_scale", DType.BF16),
        blocks.inner_norm("experts_output_norm"), pointwise("add", "tm,tm->tm", "experts_add"),
    )


def _sizes(config: Config) -> dict[str, int]:
    """Those of the other shape of heads, and of the wide MLP."""
    same, heads = config.get("attention_k_eq_v", False), config.need("num_attention_heads")
    own = config.need("num_key_value_heads", heads)
    kv_heads = config.need("num_global_key_value_heads", own) if same else own
    config.value("num_global_key_value_heads")
    group = heads // kv_heads
    return {"Ķ": kv_heads, "ŗ": group, "į": group + 2, "ļ": 2 * group + 2, "ḩ": config.need("global_head_dim", 512),
            WIDE: 2 * config.need("intermediate_size")}
