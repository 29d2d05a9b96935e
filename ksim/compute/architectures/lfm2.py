"""Liquid AI's LFM2."""

from ksim.compute import blocks, recurrent
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import op, pointwise

__all__ = ["lfm2", "lfm2_moe"]


#: What `layer_types` calls layers of a convolution.
CONV = "conv"
#: LFM2's names, and those of later families.
NAMES = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
#: What other keys say, or what says something of training.
OTHERS = ("block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_xavier_init",
          "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "theta")


def lfm2(config: Config) -> Decoder:
    """LFM2: convolutions over three tokens in most layers, attention with normed heads in the others."""
    plain = named(config)
    size = plain.need("intermediate_size")
    if plain.get("block_auto_adjust_ff_dim", True):
        multiple = plain.need("block_multiple_of", 256)
        size = -(int(plain.factor("block_ffn_dim_multiplier") * int(2 * size / 3)) // -multiple) * multiple
    mixers, mlp = mixers_of(plain), blocks.gated_mlp(plain)
    layers = blocks.layers(kinds(plain), lambda kind: blocks.layer(mixers[kind], mlp))
    return blocks.decoder(plain, layers, tied=True, **{**conv_sizes(plain), "F": size})


def named(config: Config) -> Config:
    """*config* with the names that other families have; what it says twice must agree."""
    plain = config.under(NAMES)
    for key in OTHERS:
        plain.value(key)
    hidden = plain.need("hidden_size")
    blocks.only(plain, use_pos_enc=True, block_use_swiglu=True, block_dim=hidden, conv_dim=hidden, conv_dim_out=hidden)
    return plain


def kinds(config: Config) -> list[str]:
    """Which layers are convolutions and which attend: by `layer_types`, or by the numbers of those that attend."""
    layers = range(config.need("num_hidden_layers"))
    attend = config.get("full_attn_idxs", [*layers])
    return blocks.layer_types(config, [blocks.FULL if layer in attend else CONV for layer in layers],
                              (CONV, blocks.FULL))


def mixers_of(config: Config) -> dict[str, blocks.Operations]:
    """A layer's convolution, between gates before and after it, and a layer's attention."""
    bias = config.get("conv_bias", False)
    conv = (
        op("tm,mJI->tJI", "in_proj", parallel="I", bias=bias, part="attention_inputs"),
        pointwise("mul", "tI,tI->tI", "gate_in", parallel="I"),
        recurrent.ShortConvolution(bias),
        pointwise("mul", "tI,tI->tI", "gate_out", parallel="I"),
        op("tI,Im->tm", "out_proj", parallel="I", bias=bias, part="attention"),
    )
    return {CONV: conv, blocks.FULL: blocks.attention(config, qk_norm=True)}


def conv_sizes(config: Config) -> dict[str, int]:
    """The sizes of the convolution."""
    return {"I": config.need("hidden_size"), "J": 3, "W": config.need("conv_L_cache", 3)}


def lfm2_moe(config: Config) -> Decoder:
    """LFM2's mixtures of experts: LFM2's convolutions and attention, and experts after a few dense layers."""
    plain = named(config)
    mixers, dense = mixers_of(plain), plain.count("num_dense_layers") if "num_dense_layers" in plain.table else 2
    mlps = {True: blocks.gated_mlp(plain),
            False: blocks.experts(plain, corrected=plain.get("use_expert_bias", True))}
    layers = blocks.layers(((kind, layer < dense) for layer, kind in enumerate(kinds(plain))),
                           lambda kind: blocks.layer(mixers[kind[0]], mlps[kind[1]]))
    return blocks.mixture(plain, layers, tied=True, **conv_sizes(plain))
