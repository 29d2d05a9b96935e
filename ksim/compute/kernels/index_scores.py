"""The lightning indexer's scores, which choose the keys of sparse attention."""

from collections.abc import Sequence
from math import ceil

from attrs import frozen

from ksim.compute.kernels import Launch, Phase, Work, counts
from ksim.compute.kernels.pointwise import Pointwise
from ksim.flow.batch import Batch
from ksim.foundation.moved import renamed
from ksim.foundation.units import DType

__all__ = ["IndexScores"]

#: Queries that a thread block multiplies at a time, and keys that it takes in all (DeepGEMM).
TILE_QUERIES, TILE_KEYS = 4, 256
#: Bytes of the scale that is cached with each key.
SCALE = 4


@frozen
class IndexScores:
    """`pairs` scores of `queries` tokens against `keys` cached ones, each summed over `heads` of `size`, in FP8.

    (DeepSeek-V3.2: Sparse Attention.)  Scores are written in FP32.  Prompts and decodes are scored in launches of their
    own (DeepGEMM: fp8_mqa_logits and fp8_paged_mqa_logits).
    """

    phase: Phase
    queries: int
    keys: int
    pairs: int
    heads: int
    size: int

    family = "index_scores"
    part = renamed("part", "phase")

    def __str__(self) -> str:
        return f"{self.queries} queries, {self.keys} keys, {self.heads}x{self.size} {self.phase}"

    @property
    def work(self) -> Work:
        return Work(
            flops=2.0 * self.pairs * self.heads * self.size,
            reads=self.queries * self.heads * self.size + self.keys * (self.size + SCALE),
            writes=self.pairs * DType.FP32.bytes,
            dtype=DType.FP8,
        )

    def launches(self, sms: int) -> Sequence[Launch]:
        rows = TILE_QUERIES if self.phase == "prompts" else 1
        blocks = ceil(self.pairs / TILE_KEYS / rows + self.queries / rows)
        return [Launch(f"{rows} queries", blocks, 2.0 * rows * TILE_KEYS * self.heads * self.size,
                       (rows * self.heads + TILE_KEYS) * self.size)]


@frozen
class IndexLayer:
    """The shape of the indexer, of which every rank has all heads; the batch decides the rest."""

    phase: Phase
    heads: int
    size: int

    def over(self, batch: Batch) -> IndexScores | None:
        """The scores of its phase of *batch*; None where that is nothing."""
        _, queries, keys, pairs = counts(self.phase, batch)
        return IndexScores(self.phase, queries, keys, pairs, self.heads, self.size) if queries else None


@frozen
class ChoiceLayer:
    """Choosing the keys with the best `chosen` scores of each query."""

    phase: Phase
    chosen: int

    def over(self, batch: Batch) -> Pointwise | None:
        """The kernel that reads the scores of its phase of *batch* and writes the chosen keys; None for no queries."""
        _, queries, _, pairs = counts(self.phase, batch)
        written = queries * self.chosen * DType.FP32.bytes
        return Pointwise("index_topk", pairs * DType.FP32.bytes, written, float(pairs), queries) if queries else None
