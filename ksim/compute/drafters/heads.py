"""What the heads of all families share: how they take their inputs in, and what comes out."""

from collections.abc import Mapping

from ksim.compute import blocks
from ksim.compute.drafters.drafter import Borrowed
from ksim.compute.model import Decoder
from ksim.compute.model_ops import communicate, op, pointwise
from ksim.compute.notation import Operation

__all__ = ["EMBEDDING", "HIDDEN", "drafting", "projection", "reads_of", "sampling"]

Operations = tuple[Operation, ...]

#: The target's embedding of each token.
EMBEDDING: Operations = tuple(map(Borrowed, blocks.embedding()))
#: The target's hidden states are copied to where the drafter's graphs read them.
HIDDEN = pointwise("copy", "tm->tm", "hidden_copy")


def projection(label: str, *, split: bool = False) -> Operations:
    """What is read (O) projected to the hidden size: by every rank, or *split* among them and gathered, as in vLLM."""
    if split:
        return (op("tO,OM->tM", label, parallel="M", quantized=False),
                communicate("all_gather", "tM", f"{label}_gather"))
    return (op("tO,OM->tM", label, quantized=False),)


def reads_of(decoder: Mapping[str, int], hidden_states: int = 2) -> dict[str, int]:
    """The sizes of a projection that reads so many *hidden_states*, embeddings among them, for sizes of a *decoder*."""
    return {"O": hidden_states * decoder["m"], "M": decoder["m"]}


def sampling(*, own: bool = False, reduced: bool = False) -> Operations:
    """Logits of each sequence's last token by the target's head, or the drafter's *own*, and the best token.

    A *reduced* vocabulary (D) is spread over the whole one, whose other logits are minus infinity.
    """
    vocabulary = "D" if reduced else "V"
    head = op(f"sm,m{vocabulary}->s{vocabulary}", "lm_head", parallel=vocabulary, quantized=False)
    spread = (pointwise("copy", "sD->sV", "spread"),) if reduced else ()
    return (head if own else Borrowed(head), communicate("all_gather", f"s{vocabulary}", "logits_gather"), *spread,
            pointwise("argmax", "sV->s", "sample"))


def drafting(like: Decoder, sizes: Mapping[str, int], takes: Operations, layer: Operations,
             head: Operations) -> Decoder:
    """A drafter of one *layer* with the formats and lengths of a decoder *like* it.

    It *takes* embedding and hidden states in; its *head* begins with what goes over all tokens, and samples.
    """
    return Decoder(
        sizes=sizes, embedding=takes, layers=(layer,), head=head, max_length=like.max_length, top_k=like.top_k,
        quantization=like.quantization, unquantized=like.unquantized, kv_cache_dtype=like.kv_cache_dtype)
