"""Latent attention over a few chosen keys a query, in the absorbed form for prompts and decodes alike."""

from collections.abc import Sequence
from math import ceil

from attrs import frozen

from ksim.compute.kernels import PHASES, Launch, Work, counts
from ksim.compute.kernels.mla import TILE_HEADS
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

__all__ = ["SparseLatentAttention"]


@frozen
class SparseLatentAttention:
    """`queries` tokens of one batch attend to `pairs` chosen keys in all; heads share the keys.

    `keys` is the number of different keys; queries that follow one another choose much the same ones.
    """

    queries: int
    keys: int
    pairs: int
    heads: int
    latent: int
    rotary: int
    cache: DType = DType.BF16

    family = "sparse_mla"

    def __str__(self) -> str:
        return f"{self.queries} queries, {self.pairs} pairs, {self.heads}x{self.latent + self.rotary}+{self.latent}"

    @property
    def gathered(self) -> float:
        """Bytes of keys that the queries read one by one, from the L2 cache or from memory."""
        return self.pairs * (self.latent + self.rotary) * self.cache.bytes

    @property
    def work(self) -> Work:
        rows, key = self.queries * self.heads * DType.BF16.bytes, self.latent + self.rotary
        return Work(
            flops=2.0 * self.pairs * self.heads * (key + self.latent),
            reads=rows * key + min(self.keys, self.pairs) * key * self.cache.bytes,
            writes=rows * self.latent,
            dtype=DType.BF16,
        )

    def launches(self, sms: int) -> Sequence[Launch]:
        tiles = ceil(self.heads / TILE_HEADS)
        per_pair = 2.0 * TILE_HEADS * (2 * self.latent + self.rotary)
        return [Launch(f"{TILE_HEADS} heads", self.queries * tiles, per_pair * self.pairs / self.queries,
                       self.gathered / self.queries)]


@frozen
class SparseLatentLayer:
    """The shape of sparse latent attention over `chosen` keys a query on one rank; the batch decides the rest."""

    heads: int
    latent: int
    rotary: int
    chosen: int
    cache: DType = DType.BF16

    def over(self, batch: Batch) -> SparseLatentAttention:
        """The kernel that computes *batch*."""
        keys = sum(counts(phase, batch)[2] for phase in PHASES)
        pairs = chosen_pairs(batch, self.chosen)
        return SparseLatentAttention(batch.tokens, keys, pairs, self.heads, self.latent, self.rotary, self.cache)


def chosen_pairs(batch: Batch, chosen: int) -> int:
    """Pairs of all tokens of *batch*, each of which sees at most *chosen* keys."""
    decodes = sum(min(context + new, chosen) for context in batch.contexts for new in range(1, batch.width + 1))
    return decodes + sum(_pairs(new, context, chosen) for new, context in batch.chunks)


def _pairs(new: int, context: int, chosen: int) -> int:
    """Pairs of a chunk whose token i (from 1) sees context + i tokens, at most *chosen* of them."""
    growing = min(new, max(0, chosen - context))
    return growing * context + growing * (growing + 1) // 2 + (new - growing) * chosen
