"""Llama 4 (Scout, Maverick): a language model that sees, or its text part alone where a config has no other."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.architectures.llama4_text import llama4_text
from ksim.compute.model import Config, Decoder
from ksim.compute.vision.tiled import llama4_vision

__all__ = ["llama4"]


def llama4(config: Config) -> Decoder:
    decoder, vision = llama4_text(blocks.text(config)), config.part("vision_config")
    return evolve(decoder, encoder=llama4_vision(vision, decoder.sizes["m"])) if vision.table else decoder
