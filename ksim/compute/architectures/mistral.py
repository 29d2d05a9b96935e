"""Mistral: a Llama that some configs give a sliding window in every layer."""

from ksim.compute.architectures.llama import llama as mistral

__all__ = ["mistral"]
