"""GLM-5: DeepSeek-V3's layers, in which an indexer chooses the keys that a query attends to (DeepSeek-V3.2's).

From GLM-5.2 on, most layers attend to what the indexer of an earlier layer chose.  The layer that predicts a second
token is a drafter's, as there.
"""

from ksim.compute import blocks, latent
from ksim.compute.model import Config, Decoder

__all__ = ["glm_moe_dsa"]

#: What `indexer_types` calls layers with an indexer, and without.
OWN, SHARED = "full", "shared"


def glm_moe_dsa(config: Config) -> Decoder:
    attention = {OWN: latent.attention(config, *latent.sparse_attention(config)),
                 SHARED: latent.attention(config, *latent.shared_choice(config))}
    return latent.decoder(config, [attention[kind] for kind in _indexers(config)], latent.sparse_sizes(config))


def _indexers(config: Config) -> list[str]:
    """Which layers have an indexer: by `indexer_types`, or from an offset on every few, as vLLM counts them."""
    every, offset = config.need("index_topk_freq", 1), config.need("index_skip_topk_offset", 2)
    layers = config.need("num_hidden_layers")
    default = [SHARED if max(layer - offset + 1, 0) % every else OWN for layer in range(layers)]
    config.value("index_share_for_mtp_iteration")  # of the drafter
    dense = min(config.count("first_k_dense_replace"), layers)
    blocks.only(config, mlp_layer_types=["dense"] * dense + ["sparse"] * (layers - dense), index_topk_pattern="")
    return blocks.layer_types(config, default, (OWN, SHARED), key="indexer_types")
