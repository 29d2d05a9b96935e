"""N-grams: the last tokens of each sequence are looked up in it, and what followed them is proposed.

vLLM 0.33 does so on the GPU, in two kernels without weights (v1/worker/gpu/spec_decode/ngram/speculator.py): one reads
all tokens of each sequence, the other takes the best match.
"""

from collections.abc import Iterator

from attrs import frozen

from ksim.compute.graph import Op
from ksim.compute.kernels.pointwise import Pointwise
from ksim.compute.model import Decoder
from ksim.compute.model_ops import pointwise
from ksim.compute.sizes import Sizes
from ksim.flow.batch import Batch
from ksim.specs.shard import Shard

__all__ = ["ngrams"]

#: Bytes of a token's id, and of the best match in a block of so many tokens.
ID, MATCH, BLOCK = 4, 8, 1024


@frozen
class _Scan:
    """The kernel that reads the ids of all tokens of a batch's sequences."""

    def over(self, batch: Batch) -> Pointwise | None:
        tokens = batch.tokens + batch.contexts.total + sum(context for _, context in batch.chunks)
        blocks = batch.sequences + tokens // BLOCK
        return Pointwise("ngram", float(ID * tokens), float(MATCH * blocks), float(tokens), blocks) if tokens else None


@frozen
class Scan:
    """Reads the ids of all tokens of every sequence."""

    label: str = "scan"

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        yield Op(self.label, _Scan())


def ngrams(target: Decoder) -> Decoder:
    """What looks up n-grams beside *target*: on every rank the same."""
    best = pointwise("ngram", "s->s", "best_match", reads="fp32", writes="fp32")
    return Decoder(target.sizes, (), (), (Scan(), best), target.max_length)
