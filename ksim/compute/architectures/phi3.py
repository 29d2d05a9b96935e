"""Phi-3 and Phi-4: a Llama; its checkpoints hold fused the projections that vLLM fuses for others.

Rotary embeddings of part of a head move about as much as those of all of it, and are taken to.
"""

from ksim.compute import blocks
from ksim.compute.architectures.llama import llama
from ksim.compute.model import Config, Decoder

__all__ = ["phi3"]


def phi3(config: Config) -> Decoder:
    blocks.only(config, full_attn_mod=1, interpolate_factor=1, lm_head_bias=False)
    return llama(config)
