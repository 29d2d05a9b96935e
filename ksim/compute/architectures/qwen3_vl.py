"""Qwen3-VL: a Qwen3 that sees."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.architectures.qwen3 import qwen3
from ksim.compute.model import Config, Decoder
from ksim.compute.vision.qwen import qwen3_vision

__all__ = ["qwen3_vl"]


def qwen3_vl(config: Config) -> Decoder:
    decoder = qwen3(blocks.text(config))
    return evolve(decoder, encoder=qwen3_vision(config.part("vision_config"), decoder.sizes["m"]))
