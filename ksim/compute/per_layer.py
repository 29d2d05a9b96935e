"""Parts of Gemma 3n and Gemma 4: embeddings of each layer's own, and layers that read keys of earlier ones."""

from ksim.compute import blocks
from ksim.compute.model import Config
from ksim.compute.model_ops import Lookup, attend, communicate, op, pointwise

__all__ = ["OTHER", "OWN", "attention", "embedding", "gated", "keeps", "sizes"]

#: Indices of KV heads, query heads per KV head, both with keys and values, and a head's numbers; and of other layers'.
OWN, OTHER = ("K", "r", "i", "h"), ("Ķ", "ŗ", "į", "ḩ")


def attention(window: int, own: bool, letters: tuple[str, str, str, str] = OWN) -> blocks.Operations:
    """Attention whose queries, keys and values are normed head by head; without keys of its *own*, queries alone."""
    heads, group, both, size = letters
    queries, keys = f"t{heads}{group}{size}", f"t{heads}{size}"
    if own:
        inputs: blocks.Operations = (
            op(f"tm,m{both}{heads}{size}->t{both}{heads}{size}", "qkv", parallel=heads, part="attention_inputs"),
            pointwise("rms_norm", f"{queries},{keys}->{queries},{keys}", "qk_norm", parallel=heads,
                      scale=f"{size},{size}"),
            pointwise("rope", f"{queries},{keys}->{queries},{keys}", "rope", parallel=heads),
            pointwise("rms_norm", f"{keys}->{keys}", "v_norm", parallel=heads),
            pointwise("kv_write", f"{keys},{keys}->{keys},{keys}", "kv_write", parallel=heads, writes="cache"))
    else:
        inputs = (
            op(f"tm,m{heads}{group}{size}->{queries}", "q_proj", parallel=heads, part="attention_inputs"),
            pointwise("rms_norm", f"{queries}->{queries}", "q_norm", parallel=heads, scale=size),
            pointwise("rope", f"{queries}->{queries}", "rope", parallel=heads))
    return (*inputs, attend(parallel=heads, window=window, own=own, kind=f"{heads}{group}{size}"),
            op(f"{queries},{heads}{group}{size}m->tm", "o_proj", parallel=heads, part="attention"))


def keeps(config: Config) -> list[bool]:
    """Which layers keep keys of their own: all but the last few, which read those of the last layer of their type."""
    layers, shared = config.need("num_hidden_layers"), config.count("num_kv_shared_layers")
    return [layer < layers - shared for layer in range(layers)]


def embedding() -> blocks.Operations:
    """The embedding, and with a projection of it the rows that tokens have in a table of all layers' embeddings."""
    return (
        *blocks.embedding(scaled=True),
        Lookup("CQ->tQ", "layers_embedding", parallel="C"),
        op("tm,mQ->tQ", "layers_projection", parallel="Q", part="mlp"),
        communicate("all_gather", "tQ", "layers_gather"),
        pointwise("rms_norm", "tQ->tQ", "layers_norm", scale="e"),
        pointwise("add", "tQ,tQ->tQ", "layers_add"),
    )


def gated() -> blocks.Operations:
    """A layer's own embedding, gated by the hidden state and projected; every rank computes it whole."""
    return (
        op("tm,me->te", "layer_gate", part="mlp"), pointwise("gelu_mul", "te,te->te", "layer_act"),
        op("te,em->tm", "layer_projection", part="mlp"), blocks.inner_norm("post_layer_norm"),
    )


def sizes(config: Config) -> dict[str, int]:
    """The sizes of the layers' own embeddings."""
    size = config.need("hidden_size_per_layer_input", 256)
    return {"e": size, "Q": size * config.need("num_hidden_layers"),
            "C": config.need("vocab_size_per_layer_input", 262_144)}
