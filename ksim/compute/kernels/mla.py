"""Multi-head latent attention: one launch for the prompts of a batch and one for its decodes.

With sparse attention, queries attend to a few chosen keys, in the absorbed form for prompts and decodes alike; the
lightning indexer's scores choose them.  DeepSeek-V4 attends to a window of latent vectors, and to compressed ones
beside it.  MiniMax-M3 attends to chosen blocks of the keys of grouped-query attention.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any, ClassVar, Literal

import numpy as np
from attrs import evolve, frozen

from ksim.compute.graph import KernelSweep
from ksim.compute.kernels import PHASES, Launch, Phase, Work, counts
from ksim.compute.kernels.basic import Pointwise
from ksim.flow.batch import Batch, Batches
from ksim.foundation.units import DType

__all__ = ["LatentAttention", "SparseLatentAttention", "CompressedAttention", "IndexScores",
           "BlockSparseAttention"]


#: Prompts attend to keys and values expanded for every head.  Decodes, with the projections absorbed into queries and
#: outputs, attend to the latent vectors themselves, which all heads share (DeepSeek-V2, arXiv 2405.04434, 2.1).
Form = Literal["expanded", "absorbed"]
#: Queries of one head in a thread block of FlashAttention-3, and heads of one query in a thread block of FlashMLA.
TILE_QUERIES, TILE_HEADS = 128, 64
#: Into how many parts the context of a decode may be split, as long as the blocks are no more than these waves.
SPLITS, MAX_WAVES = (2, 4, 8, 16, 32), 2


@frozen
class LatentAttention:
    """`queries` new tokens of `sequences` attend to `keys` tokens, their own included, in `pairs` pairs a head.

    `content` and `rotary` are the sizes of the parts of a query and a key, `value` is that of a value, `latent` that
    of the vector that stands for keys and values of all heads.  A token caches this vector and a rotary key.
    """

    form: Form
    heads: int
    content: int
    rotary: int
    value: int
    latent: int
    cache: DType = DType.BF16
    sequences: int = 0
    queries: int = 0
    keys: int = 0
    pairs: int = 0

    family = "mla"

    def counted(self, batch: Batch) -> "LatentAttention | None":
        """Of *batch*'s prompts or decodes; vLLM attends to new and cached tokens of a prompt in two kernels, not one.
        """
        sequences, queries, keys, pairs = counts("decodes" if self.form == "absorbed" else "prompts", batch)
        return evolve(self, sequences=sequences, queries=queries, keys=keys, pairs=pairs) if sequences else None

    def __str__(self) -> str:
        template, numbers = self.printed
        return template.format(*numbers)

    @property
    def printed(self) -> tuple[str, tuple[float, ...]]:
        """Its text as a template, and the numbers that fill it."""
        return (f"{{:.0f}} seqs, {{:.0f}} queries, {{:.0f}} keys, {self.heads}x{self._key}+{self._value} {self.form}",
                (self.sequences, self.queries, self.keys))

    @property
    def _key(self) -> int:
        """The size of a query and of a key."""
        return self.rotary + (self.latent if self.form == "absorbed" else self.content)

    @property
    def _value(self) -> int:
        return self.latent if self.form == "absorbed" else self.value

    @property
    def work(self) -> Work:
        rows = self.queries * self.heads * DType.BF16.bytes
        if self.form == "absorbed":
            keys = self.keys * (self.latent + self.rotary) * self.cache.bytes
        else:
            keys = self.keys * self.heads * (self._key + self._value) * DType.BF16.bytes
        return Work(
            flops=2.0 * self.pairs * self.heads * (self._key + self._value),
            reads=rows * self._key + keys,
            writes=rows * self._value,
            # Kernels for FP8 caches may multiply in FP8, as TensorRT-LLM's do on Blackwell.
            dtype=self.cache if self.form == "absorbed" else DType.BF16,
        )

    def launches(self, sms: int) -> Sequence[Launch]:
        per_pair = 2.0 * (self._key + self._value)
        if self.form == "expanded":
            tiles = ceil(self.queries / TILE_QUERIES + self.sequences / 2)
            padded = self.pairs + TILE_QUERIES / 2 * self.keys
            blocks = tiles * self.heads
            return [Launch(f"{TILE_QUERIES} queries", blocks, per_pair * padded / tiles)]
        # The queries of a sequence share its latent vectors: their heads fill tiles together (FlashMLA).
        tiles = ceil(self.heads * self.queries / self.sequences / TILE_HEADS)
        blocks, flops = self.sequences * tiles, per_pair * TILE_HEADS * self.pairs / self.queries
        partial = 2.0 * self.queries * self.heads * self._value * DType.FP32.bytes
        return [Launch(f"{TILE_HEADS} heads", blocks, flops)] + [
            Launch(f"{TILE_HEADS} heads/{split}", blocks * split, flops / split, 0.0, partial * split)
            for split in SPLITS if blocks * split <= MAX_WAVES * sms]


@frozen
class LatentLayer:
    """Latent attention over all keys for any batch: `shape` has the sizes on one rank, and no counts.

    Its counts are those of `COUNTS` that chunks have, be they of prompts or of decodes: all are 0 where a batch has
    nothing for it.
    """

    shape: LatentAttention

    family = "mla"
    #: Marks what only some batches launch.
    some: ClassVar[bool] = True

    @property
    def cache(self) -> DType:
        """The format of the cache."""
        return self.shape.cache

    def over(self, batch: Batch) -> LatentAttention | None:
        """The kernel that is launched for *batch*; None if it has nothing to do there."""
        return self.shape.counted(batch)

    def kernel(self, counts: Sequence[Any]) -> LatentAttention:
        """The kernel with these `COUNTS`, or many as one where they are columns."""
        _, _, _, sequences, queries, keys, pairs, *_ = counts
        return evolve(self.shape, sequences=sequences, queries=queries, keys=keys, pairs=pairs)

    def counts(self, batch: Batch) -> tuple[int, ...]:
        """Its `COUNTS` over *batch*."""
        return 0, 0, 0, *counts(self._phase, batch), 0, 0, 0

    def sweep(self, batches: Batches) -> KernelSweep:
        """The kernels that compute each of *batches*, each of which has something for it."""
        return KernelSweep.of(self.kernel(self.columns(batches)))

    def amounts(self, batches: Batches) -> Any:
        """How many sequences each of *batches* has for it, (batches,)."""
        return batches.chunks.sums(np.ones_like(batches.chunks.new)) if self._phase == "prompts" else batches.decodes

    def columns(self, batches: Batches) -> Sequence[Any]:
        """Its `COUNTS` over each of *batches*."""
        chunks, none = batches.chunks, np.zeros(len(batches), dtype=np.int64)
        if self._phase == "prompts":
            new, context = chunks.new, chunks.context
            pairs = new * context + new * (new + 1) // 2
            some = [chunks.sums(each) for each in (np.ones_like(new), new, new + context, pairs)]
        elif batches.wide:
            some = [*np.array([counts("decodes", batch) for batch in batches], dtype=np.int64).T.copy()]
        else:
            keys = batches.total + batches.decodes
            some = [batches.decodes, batches.decodes, keys, keys]
        return [none, none, none, *some, none, none, none]

    @property
    def _phase(self) -> Phase:
        return "decodes" if self.shape.form == "absorbed" else "prompts"


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
    tile_heads: ClassVar[int] = TILE_HEADS

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


@frozen
class CompressedAttention(SparseLatentAttention):
    """Sparse latent attention whose keys are values, too: all numbers of a vector, rotated ones among them."""

    family = "compressed_mla"


@frozen
class CompressedLayer:
    """The shape on one rank; the batch decides the rest.

    A query sees the last `window` tokens, and for every `stride` tokens before it a compressed vector: the `chosen`
    ones that score best, or all of them without.  Without a `stride` there is the window alone.
    """

    heads: int
    size: int
    window: int
    stride: int = 0
    chosen: int = 0
    cache: DType = DType.BF16

    def over(self, batch: Batch) -> CompressedAttention:
        """The kernel that computes *batch*."""
        sequences = [*((batch.width, context) for context in batch.contexts), *batch.chunks]
        pairs = sum(self.seen(context + new) - self.seen(context) for new, context in sequences)
        keys = sum(min(new + context, self.window + new) + ((new + context) // self.stride if self.stride else 0)
                   for new, context in sequences)
        return CompressedAttention(batch.tokens, keys, pairs, self.heads, self.size, 0, self.cache)

    def seen(self, tokens: int) -> int:
        """The number of vectors that the first *tokens* of a sequence see, all together."""
        inside = min(tokens, self.window)
        seen = inside * (inside + 1) // 2 + (tokens - inside) * self.window
        if not self.stride:
            return seen
        growing = min(tokens, (self.chosen + 1) * self.stride - 1) if self.chosen else tokens
        whole, rest = divmod(growing, self.stride)
        return seen + self.stride * whole * (whole - 1) // 2 + whole * (rest + 1) + self.chosen * (tokens - growing)


#: Queries that a thread block multiplies at a time, and keys that it takes in all (DeepGEMM).
SCORED_QUERIES, SCORED_KEYS = 4, 256
#: Bytes of the scale that is cached with each key.
SCALE = 4


@frozen
class IndexScores:
    """`pairs` scores of `queries` tokens against `keys` cached ones, each of `heads` of `size`, in FP8 or BF16.

    (DeepSeek-V3.2: Sparse Attention.)  There is one key for every `stride` tokens.  Scores are written in FP32,
    `written` bytes a pair: one that is summed over the heads, or one of each head and block of keys.  Prompts and
    decodes are scored in launches of their own (DeepGEMM: fp8_mqa_logits and fp8_paged_mqa_logits).
    """

    phase: Phase
    heads: int
    size: int
    stride: int = 1
    format: DType = DType.FP8
    written: float = DType.FP32.bytes
    queries: int = 0
    keys: int = 0
    pairs: int = 0

    family = "index_scores"

    def counted(self, batch: Batch) -> "IndexScores | None":
        _, queries, keys, pairs = counts(self.phase, batch)
        keys, pairs = (ceil(count / self.stride) for count in (keys, pairs))
        return evolve(self, queries=queries, keys=keys, pairs=pairs) if queries else None

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
        rows = SCORED_QUERIES if self.phase == "prompts" else 1
        blocks = ceil(self.pairs / SCORED_KEYS / rows + self.queries / rows)
        return [Launch(f"{rows} queries", blocks, 2.0 * rows * SCORED_KEYS * self.heads * self.size,
                       (rows * self.heads + SCORED_KEYS) * self.size)]


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
