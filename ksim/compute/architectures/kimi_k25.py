"""Kimi K2.5: a Kimi K2; the vision part of its configs is left out."""

from ksim.compute import blocks
from ksim.compute.architectures.kimi_k2 import kimi_k2
from ksim.compute.model import Config, Decoder

__all__ = ["kimi_k25"]


def kimi_k25(config: Config) -> Decoder:
    return kimi_k2(blocks.text(config))
