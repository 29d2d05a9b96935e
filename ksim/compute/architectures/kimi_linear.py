"""Kimi Linear: Kimi Delta Attention in three of four layers, latent attention without rotary embeddings in the fourth,
and DeepSeek-V3's experts.

vLLM projects queries, keys, values, their weights and the ranks of both gates in one product (kimi_gdn_linear_attn.py).
"""

from ksim.compute import blocks, latent
from ksim.compute.linear import AttendLinear
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import op, pointwise
from ksim.foundation.errors import ConfigError

__all__ = ["kimi_linear"]

#: Kimi's names, and DeepSeek's.
NAMES = {"num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts",
         "model_max_length": "max_position_embeddings"}


def kimi_linear(config: Config) -> Decoder:
    blocks.only(config, mla_use_nope=True)
    linear = config.part("linear_attn_config")
    mixers = {True: tuple(line for line in latent.attention(config) if line.label != "rope"), False: delta_attention()}
    heads, size = linear.need("num_heads"), linear.need("head_dim")
    attention = [mixers[attends] for attends in _attends(config, linear)]
    return latent.decoder(config.under(NAMES), attention, {
        "G": heads, "o": 1, "e": size, "Y": 3, "J": 3, "R": size, "W": linear.need("short_conv_kernel_size"), "A": 1})


def delta_attention() -> blocks.Operations:
    """Kimi Delta Attention, from the normed hidden state to the output projection."""
    return (
        op("tm,mJGe->tJGe", "qkv", parallel="G", part="attention_inputs"),
        op("tm,mG->tG", "beta", parallel="G", part="attention_inputs"),
        op("tm,mgR->tgR", "gates_down", part="attention_inputs"),
        op("tR,RGe->tGe", "decay_up", parallel="G", part="attention_inputs"),
        AttendLinear(by_channel=True),
        op("tR,RGe->tGe", "output_gate", parallel="G", part="attention_inputs"),
        pointwise("rms_norm_gated", "tGe,tGe->tGe", "delta_norm", parallel="G", scale="e"),
        op("tGe,Gem->tm", "o_proj", parallel="G", part="attention"),
    )


def _attends(config: Config, linear: Config) -> list[bool]:
    """Which layers have latent attention: those that are listed, from 1 on."""
    full, rest = ({*linear.get(key, [])} for key in ("full_attn_layers", "kda_layers"))
    layers = range(1, config.need("num_hidden_layers") + 1)
    if full & rest or full | rest != {*layers}:
        raise ConfigError(f"{linear.name}: full_attn_layers", f"expected each of {len(layers)} layers here or in"
                                                              " kda_layers")
    return [layer in full for layer in layers]
