"""Mistral Small 3.1 and its like: the language model of a config that has a vision part, too."""

from ksim.compute import blocks
from ksim.compute.architectures.llama import llama
from ksim.compute.model import Config, Decoder

__all__ = ["mistral3"]


def mistral3(config: Config) -> Decoder:
    return llama(blocks.text(config))
