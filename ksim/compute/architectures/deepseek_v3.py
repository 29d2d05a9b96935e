"""DeepSeek-V3 and R1: latent attention, and after a few dense layers experts, some of which every token meets.

Routing in groups, its correction bias (a number an expert) and the layer that predicts a second token are not modelled.
"""

from ksim.compute import latent
from ksim.compute.model import Config, Decoder

__all__ = ["deepseek_v3"]


def deepseek_v3(config: Config) -> Decoder:
    return latent.decoder(config, latent.attention(config))
