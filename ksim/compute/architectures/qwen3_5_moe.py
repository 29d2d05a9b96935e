"""Qwen3.5's mixtures of experts: Qwen3-Next's layers; the vision part of their configs is left out."""

from ksim.compute import blocks
from ksim.compute.architectures.qwen3_next import qwen3_next
from ksim.compute.model import Config, Decoder

__all__ = ["qwen3_5_moe"]


def qwen3_5_moe(config: Config) -> Decoder:
    return qwen3_next(blocks.text(config))
