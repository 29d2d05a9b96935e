"""OLMoE: Mixtral's layers with one norm over all query heads, and one over all key heads, for which ranks gather them.

(vllm/model_executor/models/olmoe.py)
"""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["olmoe"]


def olmoe(config: Config) -> Decoder:
    attention = blocks.attention(config, before=(*blocks.GATHERED_NORM, *blocks.ROPE))
    return blocks.mixture(config, [blocks.layer(attention, blocks.experts(config))] * config.need("num_hidden_layers"))
