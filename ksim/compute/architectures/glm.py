"""Z.ai's GLM-4."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder
from ksim.compute.vision.towers import glm_vision

__all__ = ["glm4", "glm4_moe", "glm4v"]


def glm4(config: Config) -> Decoder:
    """GLM-4 of 2025 (0414): norms before and after each block, and biases on queries, keys and values."""
    layer = blocks.sandwich(blocks.attention(config, out_bias=False), blocks.gated_mlp(config))
    return blocks.decoder(config, [layer] * config.need("num_hidden_layers"))


def glm4_moe(config: Config) -> Decoder:
    """GLM-4.5, 4.6 and 4.7: grouped-query attention, and after a few dense layers experts beside one that is shared."""
    dense, size = config.count("first_k_dense_replace"), config.need("moe_intermediate_size")
    attention = blocks.attention(config, qk_norm=config.get("use_qk_norm", False), out_bias=False)
    mixture = blocks.experts(config, shared=blocks.shared_experts(config), exact=True, corrected=True)
    first, other = blocks.layer(attention, blocks.gated_mlp(config)), blocks.layer(attention, mixture)
    layers = [first if layer < dense else other for layer in range(config.need("num_hidden_layers"))]
    return blocks.mixture(config, layers, S=size * config.need("n_shared_experts"))


def glm4v(config: Config) -> Decoder:
    """GLM-4.1V and GLM-4.5V: a GLM-4 of 2025, dense or a mixture of experts, that sees."""
    text = blocks.text(config)
    text = text.instead({"attention_bias": True, **text.table})
    decoder = (glm4_moe if text.value("n_routed_experts") else glm4)(text)
    return evolve(decoder, encoder=glm_vision(config.part("vision_config"), decoder.sizes["m"]))
