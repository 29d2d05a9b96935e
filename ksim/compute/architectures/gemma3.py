"""Gemma 3 from 4B on: the language model of a config that has a vision part, too."""

from ksim.compute import blocks
from ksim.compute.architectures.gemma3_text import gemma3_text
from ksim.compute.model import Config, Decoder

__all__ = ["gemma3"]


def gemma3(config: Config) -> Decoder:
    return gemma3_text(blocks.text(config))
