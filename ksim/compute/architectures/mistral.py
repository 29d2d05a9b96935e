"""Mistral's models."""

from ksim.compute import blocks
from ksim.compute.architectures.llama import llama
from ksim.compute.model import Config, Decoder

__all__ = ["mistral3", "mixtral"]


def mistral3(config: Config) -> Decoder:
    """Mistral Small 3.1 and its like: the language model of a config that has a vision part, too."""
    return llama(blocks.text(config))


def mixtral(config: Config) -> Decoder:
    """Mixtral: Llama's layers with a mixture of experts for an MLP."""
    return blocks.mixture(config, blocks.layers(blocks.windows(config), lambda window: blocks.layer(
        blocks.attention(config, window), blocks.experts(config))))
