"""GLM-5: DeepSeek-V3's layers, in which an indexer chooses the keys that a query attends to (DeepSeek-V3.2's).

The layer that predicts a second token is a drafter's, as there.
"""

from ksim.compute import latent
from ksim.compute.model import Config, Decoder

__all__ = ["glm_moe_dsa"]


def glm_moe_dsa(config: Config) -> Decoder:
    attention = latent.attention(config, *latent.sparse_attention(config))
    return latent.decoder(config, attention, latent.sparse_sizes(config))
