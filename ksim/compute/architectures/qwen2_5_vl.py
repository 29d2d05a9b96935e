"""Qwen2.5-VL: a Qwen2.5 that sees."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.architectures.qwen2 import qwen2
from ksim.compute.model import Config, Decoder
from ksim.compute.vision.qwen import qwen2_5_vision

__all__ = ["qwen2_5_vl"]


def qwen2_5_vl(config: Config) -> Decoder:
    decoder = qwen2(blocks.text(config))
    return evolve(decoder, encoder=qwen2_5_vision(config.part("vision_config"), decoder.sizes["m"]))
