"""Kimi K2.5: a Kimi K2; the vision part of its configs is left out."""

from ksim.compute import blocks
from ksim.compute.architectures.deepseek_v3 import deepseek_v3
from ksim.compute.model import Config, Decoder

__all__ = ["kimi_k25"]


def kimi_k25(config: Config) -> Decoder:
    return deepseek_v3(blocks.text(config))
