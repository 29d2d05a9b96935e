"""Qwen3-VL's mixtures of experts: a Qwen3 mixture that sees."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.architectures.qwen3_moe import qwen3_moe
from ksim.compute.model import Config, Decoder
from ksim.compute.vision.qwen import qwen3_vision

__all__ = ["qwen3_vl_moe"]


def qwen3_vl_moe(config: Config) -> Decoder:
    decoder = qwen3_moe(blocks.text(config))
    return evolve(decoder, encoder=qwen3_vision(config.part("vision_config"), decoder.sizes["m"]))
