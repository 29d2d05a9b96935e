"""DeepSeek-V3 and R1: latent attention, and after a few dense layers experts, some of which every token meets.

The router's kernel takes as long with groups as without.  The layer that predicts a second token is a drafter's.
"""

from ksim.compute import latent
from ksim.compute.model import Config, Decoder

__all__ = ["deepseek_v3"]


def deepseek_v3(config: Config) -> Decoder:
    return latent.decoder(config, [latent.attention(config)] * config.need("num_hidden_layers"))
