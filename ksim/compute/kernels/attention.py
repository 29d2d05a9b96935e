"""Attention of a whole ragged batch over its paged KV cache, in one launch."""

from collections.abc import Sequence
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
from attrs import frozen

from ksim.compute.graph import KernelSweep
from ksim.compute.kernels import Launch, Work
from ksim.flow.batch import Batch, Batches, Contexts
from ksim.foundation.units import DType

__all__ = ["Attention"]


#: Rows of queries in a thread block (FlashAttention-3, head dimension 128); query heads that share a
#: KV head are packed into them, and 64 is the fewest rows a Hopper matrix instruction takes.
TILE_ROWS, MIN_ROWS = 128, 64
#: Into how many parts the context of a sequence may be split, and the waves of blocks beyond which none is.
SPLITS, MAX_WAVES = (2, 4, 8, 16, 32), 2


@frozen
class Attention:
    """Sequences with one new token (`decodes`) and with more (`chunks`) attend to their cached keys.

    All counts are per head and over the whole batch; keys include the new
    tokens.  `decode_longest` and `chunk_longest` are the most keys of one
    sequence, `chunk_most` the most new tokens; `chunk_pairs` counts (query,
    key) pairs, and `chunk_unmasked_pairs` what they would be without masks: new
    tokens times keys.

    In a `KernelSweep` the counts are columns of (kernels,).
    """

    decodes: int
    decode_keys: int
    decode_longest: int
    chunks: int
    chunk_queries: int
    chunk_keys: int
    chunk_pairs: int
    chunk_unmasked_pairs: int
    chunk_most: int
    chunk_longest: int
    heads: int
    kv_heads: int
    head_dim: int
    cache: DType = DType.BF16

    family = "attention"

    def __str__(self) -> str:
        template, numbers = self.printed
        return template.format(*numbers)

    @property
    def printed(self) -> tuple[str, tuple[float, ...]]:
        """Its text as a template, and the numbers that fill it."""
        return (f"{{:.0f}} seqs, {{:.0f}} queries, {{:.0f}} keys, {self.heads}/{self.kv_heads}x{self.head_dim}",
                (self.sequences, self.queries, self.keys))

    @property
    def sequences(self) -> int:
        return self.decodes + self.chunks

    @property
    def queries(self) -> int:
        return self.decodes + self.chunk_queries

    @property
    def keys(self) -> int:
        return self.decode_keys + self.chunk_keys

    @property
    def pairs(self) -> int:
        return self.decode_keys + self.chunk_pairs

    @cached_property
    def work(self) -> Work:
        activations = self.queries * self.heads * self.head_dim * DType.BF16.bytes
        return Work(
            flops=4.0 * self.pairs * self.heads * self.head_dim,  # scores, then the weighted sum of values
            reads=activations + 2 * self.keys * self.kv_heads * self.head_dim * self.cache.bytes,
            writes=activations,
            dtype=DType.BF16,
            padded=4.0 * self._padded_pairs * self.kv_heads * self.head_dim,
        )

    @property
    def _rows(self) -> int:
        """Rows of the tile that a decode's query heads of one KV head fill up."""
        return -(-self.heads // self.kv_heads // MIN_ROWS) * MIN_ROWS

    @property
    def _padded_pairs(self) -> float:
        """Pairs of a KV head's queries and keys with tiles filled up, of which the last of a chunk is half full."""
        chunks = self.chunk_pairs * (self.heads // self.kv_heads) + self.chunks * TILE_ROWS / 2 * self.chunk_longest
        return self.decode_keys * self._rows + chunks

    def launches(self, sms: int) -> Sequence[Launch]:
        """Query heads that share a KV head are packed into tiles; the last tile of a chunk is half full."""
        group = self.heads // self.kv_heads
        chunk_tiles = ceil(self.chunk_queries * group / TILE_ROWS + self.chunks / 2)
        blocks = (self.decodes + chunk_tiles) * self.kv_heads
        per_key = 4.0 * self.head_dim
        flops = per_key * self._padded_pairs / max(1, self.decodes + chunk_tiles)
        longest = per_key * max(self.decode_longest * self._rows, self.chunk_longest * TILE_ROWS)
        partial = 2.0 * self.queries * self.heads * self.head_dim * DType.FP32.bytes
        whole = Launch(f"{TILE_ROWS} rows", blocks, flops, longest=longest)
        return [whole] + [
            Launch(f"{TILE_ROWS} rows/{split}", blocks * split, flops / split, 0.0, partial * split, longest / split)
            for split in SPLITS if blocks * split <= MAX_WAVES * sms
        ]


#: The counts over a batch, in the order of their fields.
COUNTS = ("decodes", "decode_keys", "decode_longest", "chunks", "chunk_queries", "chunk_keys", "chunk_pairs",
          "chunk_unmasked_pairs", "chunk_most", "chunk_longest")


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
        return self.kernel(self.counts(batch))

    def kernel(self, counts: Sequence[Any]) -> Attention:
        """The kernel with these `COUNTS`, or many as one where they are columns."""
        named: Any = dict(zip(COUNTS, counts, strict=True))
        return Attention(heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, cache=self.cache, **named)

    def counts(self, batch: Batch) -> tuple[int, ...]:
        """Its `COUNTS` over *batch*.

        Sequences that verify drafts are chunks: the kernels pack their few queries into tiles as they pack any others.
        """
        if batch.width > 1:
            return self._wide_counts(batch)
        queries = keys = pairs = unmasked = most = longest = 0
        window = self.window
        for new, context in batch.chunks:
            growing, seen = new, context + new
            furthest = seen
            if window:
                growing = min(new, max(0, window - context))
                seen = min(seen, window + new - 1)
                furthest = min(seen, window)
            queries += new
            keys += seen
            pairs += _causal(new, context, growing, window)
            unmasked += new * seen
            most = new if new > most else most
            longest = furthest if furthest > longest else longest
        return *self._decode_counts(batch.contexts), len(batch.chunks), queries, keys, pairs, unmasked, most, longest

    def _wide_counts(self, batch: Batch) -> tuple[int, ...]:
        narrow = self.counts(Batch(Contexts(), batch.chunks, batch.samples, batch.tokens))
        if not (sequences := len(batch.contexts)):
            return narrow
        chunks, queries, keys, pairs, unmasked, most, longest = narrow[3:]
        wide = self._wide_sequences(batch.contexts, batch.width)
        return (0, 0, 0, chunks + sequences, queries + wide[0], keys + wide[1], pairs + wide[2], unmasked + wide[3],
                max(most, batch.width), max(longest, wide[4]))

    def _wide_sequences(self, contexts: Contexts, width: int) -> tuple[int, int, int, int, int]:
        """The counts of sequences with *width* new tokens each.

        They are queries, keys, pairs, pairs without masks, and the most keys that one query sees.
        """
        sequences, window, longest = len(contexts), self.window, contexts.longest + width
        queries, cached, pairs = sequences * width, contexts.total, 0
        if window and longest > window:
            cached, longest = contexts.capped(window - 1), window
            pairs = sum(contexts.capped(window - seen) + seen * sequences for seen in range(1, min(width, window) + 1))
            pairs += max(0, width - window) * window * sequences
        else:
            pairs = cached * width + sequences * width * (width + 1) // 2
        return queries, cached + queries, pairs, width * (cached + queries), longest

    def sweep(self, batches: Batches) -> KernelSweep:
        """The kernels that compute each of *batches*."""
        return KernelSweep.of(self.kernel(self.columns(batches)))

    def columns(self, batches: Batches) -> Sequence[Any]:
        """Its `COUNTS` over each of *batches*."""
        if batches.wide:
            return self._one_by_one(batches)
        new, context, chunks = batches.chunks.new, batches.chunks.context, batches.chunks
        if not len(new):
            return [batches.decodes, *self._all_decode_keys(batches), *[np.zeros(len(batches), np.int64)] * 7]
        seen = np.minimum(context, self.window - 1) + new if self.window else context + new
        longest = np.minimum(seen, self.window) if self.window else seen
        pairs = self._all_chunk_pairs(new, context)
        counts = [batches.decodes, *self._all_decode_keys(batches)]
        counts += [chunks.sums(each) for each in (np.ones_like(new), new, seen, pairs, new * seen)]
        return counts + [chunks.most(each) for each in (new, longest)]

    def _one_by_one(self, batches: Batches) -> Sequence[Any]:
        """The columns of batches that are counted one by one, such as those with wide sequences."""
        return [*np.array([self.counts(batch) for batch in batches], dtype=np.int64).reshape(-1, len(COUNTS)).T.copy()]

    def _decode_counts(self, contexts: Contexts) -> tuple[int, int, int]:
        """Sequences with one new token, and the keys that they read: all of them, and the longest."""
        decodes = len(contexts.offsets)
        if not decodes:
            return 0, 0, 0
        longest = contexts.longest + 1
        if self.window and longest > self.window:
            return decodes, contexts.capped(self.window - 1) + decodes, self.window
        return decodes, contexts.total + decodes, longest

    def _all_decode_keys(self, batches: Batches) -> tuple[Any, Any]:
        some = batches.decodes > 0
        if not self.window:
            return batches.total + batches.decodes, batches.longest + some
        return batches.capped(self.window - 1) + batches.decodes, np.minimum(batches.longest + some, self.window)

    def _all_chunk_pairs(self, new: Any, context: Any) -> Any:
        """Pairs of causal chunks: token i of one (from 1) sees context + i tokens, at most the window."""
        return _causal(new, context, np.clip(self.window - context, 0, new) if self.window else new, self.window)


def _causal(new: Any, context: Any, growing: Any, window: int) -> Any:
    """Pairs of a chunk, or of many as columns, of whose tokens so many do not yet see a whole window."""
    return growing * context + growing * (growing + 1) // 2 + (new - growing) * window
