"""MiniMax-Text-01 and M1: lightning attention in seven of eight layers, attention in one, and experts in all.

vLLM served them up to 0.22.  Queries, keys and values of lightning attention pass through SiLU in FP32; its output has
one norm over all heads, for which ranks add up squares, and a gate with a projection of its own.  The factors of
residuals run inside other kernels.
"""

from ksim.compute import blocks, mamba
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import op, pointwise
from ksim.foundation.errors import ConfigError

__all__ = ["minimax_text_01"]


def minimax_text_01(config: Config) -> Decoder:
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
        mamba.AttendLightning(chunk),
        mamba.SharedSquares(always=True),
        pointwise("rms_norm", "tGe->tGe", "lightning_norm", parallel="G", scale="Ge"),
        op("tm,mGe->tGe", "output_gate", parallel="G", part="attention_inputs"),
        pointwise("sigmoid_mul", "tGe,tGe->tGe", "gate", parallel="G"),
        op("tGe,Gem->tm", "out_proj", parallel="G", part="attention"),
    )
