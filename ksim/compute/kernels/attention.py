"""Attention of a whole ragged batch over its paged KV cache, in one launch."""

from collections.abc import Sequence
from functools import cached_property
from math import ceil

from attrs import frozen

from ksim.compute.kernels import Launch, Work
from ksim.flow.batch import Batch, Contexts
from ksim.foundation.units import DType

__all__ = ["Attention"]

#: Rows of queries in a thread block (FlashAttention-3, head dimension 128); query heads that share a
#: KV head are packed into them, and 64 is the fewest rows a Hopper matrix instruction takes.
TILE_ROWS, MIN_ROWS = 128, 64
#: Into how many parts the context of a sequence may be split, and the waves of blocks beyond which none is.
SPLITS, MAX_WAVES = (2, 4, 8, 16, 32), 2


@frozen
class Attention:
    """`queries` new tokens of `sequences` sequences attend to `keys` cached ones, in `pairs` (query, key) pairs.

    All counts are per head and over the whole batch; keys include the new
    tokens.  `tiles` counts the query tiles per KV head, `padded_pairs` the pairs
    computed with tiles filled up, `longest_pairs` those of the largest tile.
    """

    sequences: int
    queries: int
    keys: int
    pairs: int
    tiles: int
    padded_pairs: int
    longest_pairs: int
    heads: int
    kv_heads: int
    head_dim: int
    cache: DType = DType.BF16

    family = "attention"

    def __str__(self) -> str:
        return (f"{self.sequences} seqs, {self.queries} queries, {self.keys} keys,"
                f" {self.heads}/{self.kv_heads}x{self.head_dim}")

    @cached_property
    def work(self) -> Work:
        activations = self.queries * self.heads * self.head_dim * DType.BF16.bytes
        return Work(
            flops=4.0 * self.pairs * self.heads * self.head_dim,  # scores, then the weighted sum of values
            reads=activations + 2 * self.keys * self.kv_heads * self.head_dim * self.cache.bytes,
            writes=activations,
            dtype=DType.BF16,
        )

    def launches(self, sms: int) -> Sequence[Launch]:
        blocks = self.tiles * self.kv_heads
        flops = 4.0 * self.head_dim * self.padded_pairs / max(1, self.tiles)
        longest = 4.0 * self.head_dim * self.longest_pairs
        partial = 2.0 * self.queries * self.heads * self.head_dim * DType.FP32.bytes
        whole = Launch(f"{TILE_ROWS} rows", blocks, flops, longest=longest)
        return [whole] + [
            Launch(f"{TILE_ROWS} rows/{split}", blocks * split, flops / split, 0.0, partial * split, longest / split)
            for split in SPLITS if blocks * split <= MAX_WAVES * sms
        ]


@frozen
class AttentionLayer:
    """Attention's shape on one rank before a batch is known; `window` tokens are seen back, 0 means all."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    cache: DType = DType.BF16

    family = "attention"

    def over(self, batch: Batch) -> Attention:
        """The kernel that computes *batch*."""
        group = self.heads // self.kv_heads
        keys, longest = self._decode_keys(batch.contexts)
        decodes, rows = len(batch.contexts), -(-group // MIN_ROWS) * MIN_ROWS
        queries, pairs, tiles, padded = decodes, keys, decodes, keys * rows
        longest *= rows
        for new, context in batch.chunks:
            chunk_pairs = self._chunk_pairs(new, context)
            chunk_tiles = ceil(new * group / TILE_ROWS)
            last = min(context + new, self.window + new - 1) if self.window else context + new
            queries += new
            keys += last
            pairs += chunk_pairs
            tiles += chunk_tiles
            padded += chunk_tiles * TILE_ROWS * chunk_pairs // new
            longest = max(longest, TILE_ROWS * min(last, self.window or last))
        return Attention(batch.sequences, queries, keys, pairs, tiles, padded, longest,
                         self.heads, self.kv_heads, self.head_dim, self.cache)

    def _decode_keys(self, contexts: Contexts) -> tuple[int, int]:
        """Keys that sequences with one new token each read: of all of them, and of the longest."""
        if not contexts:
            return 0, 0
        longest = contexts.longest + 1
        if self.window and longest > self.window:
            return sum(min(context + 1, self.window) for context in contexts), self.window
        return contexts.total + len(contexts), longest

    def _chunk_pairs(self, new: int, context: int) -> int:
        """Pairs of a causal chunk: its token i (from 1) sees context + i tokens, at most the window."""
        if not self.window or context + new <= self.window:
            return new * context + new * (new + 1) // 2
        growing = max(0, self.window - context)  # tokens that do not yet see a whole window
        return growing * context + growing * (growing + 1) // 2 + (new - growing) * self.window
