"""GLM-4.1V and GLM-4.5V: a GLM-4 of 2025, dense or a mixture of experts, that sees."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.architectures.glm4 import glm4
from ksim.compute.architectures.glm4_moe import glm4_moe
from ksim.compute.model import Config, Decoder
from ksim.compute.vision.qwen import glm_vision

__all__ = ["glm4v"]


def glm4v(config: Config) -> Decoder:
    text = blocks.text(config)
    text = text.instead({"attention_bias": True, **text.table})
    decoder = (glm4_moe if text.value("n_routed_experts") else glm4)(text)
    return evolve(decoder, encoder=glm_vision(config.part("vision_config"), decoder.sizes["m"]))
