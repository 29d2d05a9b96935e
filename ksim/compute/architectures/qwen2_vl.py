"""Qwen2-VL: a Qwen2 that sees."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.architectures.qwen2 import qwen2
from ksim.compute.model import Config, Decoder
from ksim.compute.vision.qwen import qwen2_vision

__all__ = ["qwen2_vl"]


def qwen2_vl(config: Config) -> Decoder:
    decoder = qwen2(blocks.text(config))
    return evolve(decoder, encoder=qwen2_vision(config.part("vision_config"), decoder.sizes["m"]))
