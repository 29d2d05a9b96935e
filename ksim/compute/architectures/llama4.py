"""Llama 4 (Scout, Maverick): the language model of a config that has a vision part, too."""

from ksim.compute import blocks
from ksim.compute.architectures.llama4_text import llama4_text
from ksim.compute.model import Config, Decoder

__all__ = ["llama4"]


def llama4(config: Config) -> Decoder:
    return llama4_text(blocks.text(config))
