"""Hunyuan, dense: a Llama that norms the heads of queries and keys after it rotated them."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["hunyuan_v1_dense"]


def hunyuan_v1_dense(config: Config) -> Decoder:
    layer = blocks.layer(attention(config), blocks.gated_mlp(config))
    return blocks.decoder(config, [layer] * config.need("num_hidden_layers"))


def attention(config: Config) -> blocks.Operations:
    """Grouped-query attention with norms after rotary embeddings."""
    norms = blocks.HEAD_NORM if config.get("use_qk_norm", True) else ()
    return blocks.attention(config, before=(*blocks.ROPE, *norms))
