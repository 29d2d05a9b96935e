"""GLM-4.5, 4.6 and 4.7: grouped-query attention, and after a few dense layers experts beside one that is shared."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["glm4_moe"]


def glm4_moe(config: Config) -> Decoder:
    dense, size = config.count("first_k_dense_replace"), config.need("moe_intermediate_size")
    attention = blocks.attention(config, qk_norm=config.get("use_qk_norm", False), out_bias=False)
    mixture = blocks.experts(config, shared=blocks.shared_experts(config), exact=True, corrected=True)
    first, other = blocks.layer(attention, blocks.gated_mlp(config)), blocks.layer(attention, mixture)
    layers = [first if layer < dense else other for layer in range(config.need("num_hidden_layers"))]
    return blocks.mixture(config, layers, S=size * config.need("n_shared_experts"))
