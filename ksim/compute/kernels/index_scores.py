"""The lightning indexer's scores, which choose the keys of sparse attention."""

from collections.abc import Sequence
from math import ceil

from attrs import frozen

from ksim.compute.kernels import Launch, Phase, Work, counts
from ksim.compute.kernels.pointwise import Pointwise
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

__all__ = ["IndexScores"]

#: Queries that a thread block multiplies at a time, and keys that it takes in all (DeepGEMM).
TILE_QUERIES, TILE_KEYS = 4, 256
#: Bytes of the scale that is cached with each key.
SCALE = 4


@frozen
class IndexScores:
    """`pairs` scores of `queries` tokens against `keys` cached ones, each of `heads` of `size`, in FP8 or BF16.

    (DeepSeek-V3.2: Sparse Attention.)  Scores are written in FP32, `written` bytes a pair: one that is summed over the
    heads, or one of each head and block of keys.  Prompts and decodes are scored in launches of their
    own (DeepGEMM: fp8_mqa_logits and fp8_paged_mqa_logits).
    """

    phase: Phase
    queries: int
    keys: int
    pairs: int
    heads: int
    size: int
    format: DType = DType.FP8
    written: float = DType.FP32.bytes

    family = "index_scores"

    def __str__(self) -> str:
        return f"{self.queries} queries, {self.keys} keys, {self.heads}x{self.size} {self.phase}"

    @property
    def work(self) -> Work:
        return Work(
            flops=2.0 * self.pairs * self.heads * self.size,
            reads=(self.queries * self.heads * self.size + self.keys * self.size) * self.format.bytes
            + self.keys * SCALE * (self.format is DType.FP8),
            writes=self.pairs * self.written,
            dtype=self.format,
        )

    def launches(self, sms: int) -> Sequence[Launch]:
        rows = TILE_QUERIES if self.phase == "prompts" else 1
        blocks = ceil(self.pairs / TILE_KEYS / rows + self.queries / rows)
        return [Launch(f"{rows} queries", blocks, 2.0 * rows * TILE_KEYS * self.heads * self.size,
                       (rows * self.heads + TILE_KEYS) * self.size)]


@frozen
class IndexLayer:
    """The shape of the indexer on one rank; the batch decides the rest.

    It scores one key for every `stride` tokens.
    """

    phase: Phase
    heads: int
    size: int
    stride: int = 1
    format: DType = DType.FP8
    written: float = DType.FP32.bytes

    def over(self, batch: Batch) -> IndexScores | None:
        """The scores of its phase of *batch*; None where that is nothing."""
        _, queries, keys, pairs = counts(self.phase, batch)
        if not queries:
            return None
        keys, pairs = (ceil(count / self.stride) for count in (keys, pairs))
        return IndexScores(self.phase, queries, keys, pairs, self.heads, self.size, format=self.format,
                           written=self.written)


@frozen
class ChoiceLayer:
    """Choosing the keys with the best `chosen` scores of each query; there is a score for every `stride` tokens."""

    phase: Phase
    chosen: int
    stride: float = 1

    def over(self, batch: Batch) -> Pointwise | None:
        """The kernel that reads the scores of its phase of *batch* and writes the chosen keys; None for no queries."""
        _, queries, _, pairs = counts(self.phase, batch)
        written = queries * self.chosen * DType.FP32.bytes
        scores = pairs / self.stride
        return Pointwise("index_topk", scores * DType.FP32.bytes, written, scores, queries) if queries else None
