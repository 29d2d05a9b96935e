"""Kimi K3: a Kimi Linear of 93 layers with experts of a latent vector; the vision part of its configs is left out."""

from ksim.compute import blocks
from ksim.compute.architectures.kimi_linear import kimi_linear
from ksim.compute.model import Config, Decoder

__all__ = ["kimi_k3"]


def kimi_k3(config: Config) -> Decoder:
    config.value("image_placeholder")
    return kimi_linear(blocks.text(config))
