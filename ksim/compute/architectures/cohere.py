"""Command R: attention and MLP of the same normed hidden state, one all-reduce for both, and scaled logits.

LayerNorms have no bias; Command R+ norms queries and keys, each head with weights of its own.
"""

from collections.abc import Sequence

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import communicate, pointwise

__all__ = ["cohere"]


def cohere(config: Config) -> Decoder:
    norms = HEADS if config.get("use_qk_norm", False) else ()
    attention = blocks.attention(config, before=(*norms, *blocks.ROPE), reduced=False)
    return built(config, [parallel(attention, blocks.gated_mlp(config, reduced=False))] * config.need("num_hidden_layers"))


#: Norms of each query head and each key head, with weights of its own.
HEADS = (pointwise("layer_norm", "tKrh,tKh->tKrh,tKh", "qk_norm", parallel="K", scale="Krh,Kh"),)


def parallel(attention: blocks.Operations, mlp: blocks.Operations) -> blocks.Operations:
    """A layer of *attention* beside an *mlp*, whose partial sums are added up before the ranks reduce them."""
    return (pointwise("layer_norm", "tm->tm", "norm", scale="m"), *attention, *mlp,
            pointwise("add", "tm,tm->tm", "block_add"), communicate("all_reduce", "tm", "block_all_reduce"),
            pointwise("add", "tm,tm->tm", "residual_add"))


def built(config: Config, layers: Sequence[blocks.Operations]) -> Decoder:
    """The tied model of these *layers*."""
    last = pointwise("layer_norm", "tm->tm", "final_norm", scale="m")
    config.value("logit_scale")
    return evolve(blocks.decoder(config, layers, tied=True), head=blocks.head(scaled=True, last=last))
