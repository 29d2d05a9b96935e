"""Gemma 3 from 4B on: a language model that sees, or its text part alone where a config has no other."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.architectures.gemma3_text import gemma3_text
from ksim.compute.model import Config, Decoder
from ksim.compute.vision.tiled import siglip

__all__ = ["gemma3"]


def gemma3(config: Config) -> Decoder:
    decoder, vision = gemma3_text(blocks.text(config)), config.part("vision_config")
    if not vision.table:
        return decoder
    tokens = config.need("mm_tokens_per_image", 256)
    return evolve(decoder, encoder=siglip(vision, decoder.sizes["m"], tokens))
