"""Llama 4, of experts and of attention within chunks, and with an encoder of images."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import attend, pointwise
from ksim.compute.vision.towers import llama4_vision

__all__ = ["llama4_text", "llama4"]


#: RMSNorm of each query and key head, without weights.
NORM = (pointwise("rms_norm", "tKrh,tKh->tKrh,tKh", "qk_norm", parallel="K"),)
#: Queries of layers without rotary embeddings are scaled by their position.
SCALE = (pointwise("scale", "tKrh->tKrh", "q_scale", parallel="K"),)


def llama4_text(config: Config) -> Decoder:
    """Llama 4: three of four layers attend within chunks, with rotary embeddings and normed heads, the fourth to all.

    Some layers have experts beside one that every token meets, the others a dense MLP.  Norms of heads have no weights,
    and the router's scores scale what goes into an expert, inside other kernels.
    """
    blocks.only(config, for_llm_compressor=False)
    mixture = blocks.experts(config, shared=blocks.shared_experts(config))
    mlp = {True: mixture, False: blocks.gated_mlp(config)}
    kinds = zip(_rotary(config), _sparse(config), strict=True)
    layers = blocks.layers(kinds, lambda kind: blocks.layer(_attention(config, rotary=kind[0]), mlp[kind[1]]))
    size = config.need("intermediate_size")
    dense = config.need("intermediate_size_mlp", size)
    return blocks.mixture(config, layers, S=size, F=dense)


def _attention(config: Config, rotary: bool) -> blocks.Operations:
    chunk = config.value("attention_chunk_size") and config.need("attention_chunk_size")
    if not rotary:
        return blocks.attention(config, before=SCALE if config.value("attn_temperature_tuning") else ())
    norm = NORM if config.get("use_qk_norm", True) else ()
    return blocks.attention(config, before=(*blocks.ROPE, *norm),
                            attend=attend(window=chunk, chunked=True) if chunk else None)


def _rotary(config: Config) -> list[bool]:
    """Which layers have rotary embeddings, and attend within chunks."""
    kinds = ["chunked_attention" if rotary else blocks.FULL for rotary in blocks.rotary(config)]
    listed = blocks.layer_types(config, kinds, ("chunked_attention", blocks.FULL))
    return [kind != blocks.FULL for kind in listed]


def _sparse(config: Config) -> list[bool]:
    """Which layers have experts: those of `moe_layers`, or the last of every few."""
    layers, every = range(config.need("num_hidden_layers")), config.count("interleave_moe_layer_step") or 1
    sparse = config.get("moe_layers", []) or [layer for layer in layers if (layer + 1) % every == 0]
    return [layer in sparse for layer in layers]


def llama4(config: Config) -> Decoder:
    """Llama 4 (Scout, Maverick): a language model that sees, or its text part alone where a config has no other."""
    decoder, vision = llama4_text(blocks.text(config)), config.part("vision_config")
    return evolve(decoder, encoder=llama4_vision(vision, decoder.sizes["m"])) if vision.table else decoder
