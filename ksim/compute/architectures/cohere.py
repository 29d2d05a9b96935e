"""Cohere's Command models."""

from collections.abc import Sequence

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import communicate, pointwise

__all__ = ["cohere", "cohere2"]


def cohere(config: Config) -> Decoder:
    """Command R: attention and MLP of the same normed hidden state, one all-reduce for both, and scaled logits.

    LayerNorms have no bias; Command R+ norms queries and keys, each head with weights of its own.
    """
    norms = HEADS if config.get("use_qk_norm", False) else ()
    attention = blocks.attention(config, before=(*norms, *blocks.ROPE), reduced=False)
    layer = parallel(attention, blocks.gated_mlp(config, reduced=False))
    return built(config, [layer] * config.need("num_hidden_layers"))


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
    config.factor("logit_scale")
    blocks.only(config, order_of_interleaved_layers="local_attn_first", use_gated_activation=True,
                use_parallel_block=True, use_embedding_sharing=True)
    decoder = blocks.decoder(config, layers, tied=True)
    return evolve(decoder, head=blocks.head(scaled=True, last=last),
                  max_length=config.need("model_max_length", decoder.max_length))


def cohere2(config: Config) -> Decoder:
    """Command A and R7B: Command R's layers, three of four with a window and rotary embeddings, the fourth with
    neither.

    A windowed query sees one token more than `sliding_window` says, as in vLLM.
    """
    blocks.only(config, use_qk_norm=False)
    every = config.need("sliding_window_pattern", config.need("_sliding_window_pattern", 4))
    slides = [(layer + 1) % every != 0 for layer in range(config.need("num_hidden_layers"))]
    return built(config, blocks.layers(blocks.windows(config, slides), lambda window: parallel(
        blocks.attention(config, window and window + 1, before=blocks.ROPE if window else (), reduced=False),
        blocks.gated_mlp(config, reduced=False))))
