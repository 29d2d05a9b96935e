"""Grouped-query attention over a few chosen blocks of keys a query (MiniMax-M3)."""

from collections.abc import Sequence

from attrs import frozen

from ksim.compute.kernels import PHASES, Launch, Work, counts
from ksim.compute.kernels.sparse_mla import chosen_pairs
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

__all__ = ["BlockSparseAttention"]


@frozen
class BlockSparseAttention:
    """`queries` tokens attend to `pairs` chosen keys in all, the same for the heads that share a KV head.

    `keys` is the number of different keys; prompts read each block once for all queries that chose it.
    """

    queries: int
    keys: int
    pairs: int
    heads: int
    kv_heads: int
    head_dim: int
    cache: DType = DType.BF16

    family = "block_sparse"

    def __str__(self) -> str:
        return f"{self.queries} queries, {self.pairs} pairs, {self.heads}/{self.kv_heads}x{self.head_dim}"

    @property
    def work(self) -> Work:
        rows = self.queries * self.heads * self.head_dim * DType.BF16.bytes
        read = min(self.keys, self.pairs) * self.kv_heads * 2 * self.head_dim * self.cache.bytes
        return Work(4.0 * self.pairs * self.heads * self.head_dim, rows + read, rows, DType.BF16)

    def launches(self, sms: int) -> Sequence[Launch]:
        return ()


@frozen
class BlockSparseLayer:
    """The shape on one rank over `chosen` keys a query; the batch decides the rest."""

    heads: int
    kv_heads: int
    head_dim: int
    chosen: int
    cache: DType = DType.BF16

    def over(self, batch: Batch) -> BlockSparseAttention:
        """The kernel that computes *batch*."""
        keys = sum(counts(phase, batch)[2] for phase in PHASES)
        return BlockSparseAttention(batch.tokens, keys, chosen_pairs(batch, self.chosen), self.heads, self.kv_heads,
                                    self.head_dim, self.cache)
