"""Microsoft's Phi."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.architectures.llama import llama
from ksim.compute.model import Config, Decoder

__all__ = ["phi3", "phimoe"]


def phi3(config: Config) -> Decoder:
    """Phi-3 and Phi-4: a Llama; its checkpoints hold fused the projections that vLLM fuses for others.

    Rotary embeddings of part of a head move about as much as those of all of it, and are taken to.
    """
    blocks.only(config, full_attn_mod=1, interpolate_factor=1, lm_head_bias=False)
    return llama(config)


def phimoe(config: Config) -> Decoder:
    """Phi-3.5-MoE: Mixtral's layers with LayerNorms and biases of all projections but the experts'."""
    layers = blocks.layers(blocks.windows(config), lambda window: blocks.layer_norm_layer(
        blocks.attention(config, window), blocks.experts(config)))
    head = blocks.head(bias=config.get("lm_head_bias", False), last=blocks.layer_norm("final_norm"))
    return evolve(blocks.mixture(config, layers), head=head)
