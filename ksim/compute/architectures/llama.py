"""Llama: grouped-query attention and a gated MLP, each after a norm."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["llama"]


def llama(config: Config) -> Decoder:
    layer = (
        blocks.norm("attention_norm"),
        *blocks.attention(bias=config.get("attention_bias", False)),
        blocks.norm("mlp_norm"),
        *blocks.gated_mlp(),
    )
    return Decoder(
        sizes=blocks.sizes(config),
        embedding=blocks.embedding(),
        layers=(layer,) * config.need("num_hidden_layers"),
        head=blocks.head(),
        max_length=config.need("max_position_embeddings"),
        tied=config.get("tie_word_embeddings", False),
    )
