"""DeepSeek-V3 and R1: latent attention, and after a few dense layers experts, some of which every token meets.

Routing in groups, its correction bias (a number an expert) and the layer that predicts a second token are not modelled.
"""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["deepseek_v3"]


def deepseek_v3(config: Config) -> Decoder:
    dense, size = config.get("first_k_dense_replace", 0), config.need("moe_intermediate_size")
    return blocks.decoder(
        config,
        [
            (
                blocks.norm("attention_norm"),
                *blocks.latent_attention(config),
                blocks.norm("mlp_norm"),
                *(blocks.gated_mlp(config) if layer < dense else
                  (*blocks.shared_experts(config), *blocks.experts(config))),
            )
            for layer in range(config.need("num_hidden_layers"))
        ],
        tied=False,
        top_k=config.need("num_experts_per_tok"),
        E=config.need("n_routed_experts"),
        f=size,
        S=size * config.need("n_shared_experts"),
        **blocks.latent_sizes(config),
    )
