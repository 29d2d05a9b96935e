"""Mixtral: Llama's layers with a mixture of experts for an MLP."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["mixtral"]


def mixtral(config: Config) -> Decoder:
    return blocks.decoder(
        config,
        [
            (
                blocks.norm("attention_norm"),
                *blocks.attention(config, window),
                blocks.norm("mlp_norm"),
                *blocks.experts(config),
            )
            for window in blocks.windows(config)
        ],
        top_k=config.need("num_experts_per_tok"),
        E=config.need("num_local_experts"),
        f=config.need("intermediate_size"),
    )
