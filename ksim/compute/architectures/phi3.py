"""Phi-3 and Phi-4: a Llama; its checkpoints hold fused the projections that vLLM fuses for others.

Rotary embeddings of part of a head move about as much as those of all of it, and are taken to.
"""

from ksim.compute.architectures.llama import llama as phi3

__all__ = ["phi3"]
