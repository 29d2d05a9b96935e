"""OLMo 2: norms after attention and MLP, and one norm each over all query heads and all key heads."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["olmo2"]


def olmo2(config: Config) -> Decoder:
    return blocks.decoder(config, blocks.layers(blocks.windows(config), lambda window: (
        *blocks.attention(config, window, wide_norm=True), blocks.post_norm("attention_norm"),
        *blocks.gated_mlp(config), blocks.post_norm("mlp_norm"))))
