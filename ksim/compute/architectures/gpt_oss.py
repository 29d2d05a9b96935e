"""gpt-oss: biased projections, attention with sinks and a window in every other layer, and experts in all of them."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["gpt_oss"]


def gpt_oss(config: Config) -> Decoder:
    every_other = [layer % 2 == 0 for layer in range(config.need("num_hidden_layers"))]
    return blocks.mixture(config, blocks.layers(blocks.windows(config, every_other), lambda window: blocks.layer(
        blocks.attention(config, window, sinks=True), blocks.experts(config, bias=True))))
