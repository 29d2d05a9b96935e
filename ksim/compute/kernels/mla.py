"""Multi-head latent attention: one launch for the prompts of a batch and one for its decodes."""

from collections.abc import Sequence
from math import ceil
from typing import Literal

from attrs import frozen

from ksim.compute.kernels import Launch, Work, counts
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

__all__ = ["LatentAttention"]

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
    sequences: int
    queries: int
    keys: int
    pairs: int
    heads: int
    content: int
    rotary: int
    value: int
    latent: int
    cache: DType = DType.BF16

    family = "mla"

    def __str__(self) -> str:
        return (f"{self.sequences} seqs, {self.queries} queries, {self.keys} keys,"
                f" {self.heads}x{self._key}+{self._value} {self.form}")

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
    """The shape of latent attention on one rank, of prompts or of decodes; the batch decides the rest.

    vLLM attends to new and to cached tokens of a prompt in two kernels; here they are one.
    """

    form: Form
    heads: int
    content: int
    rotary: int
    value: int
    latent: int
    cache: DType = DType.BF16

    def over(self, batch: Batch) -> LatentAttention | None:
        """The kernel that computes its phase of *batch*; None where that is nothing."""
        sequences, queries, keys, pairs = counts("decodes" if self.form == "absorbed" else "prompts", batch)
        if not sequences:
            return None
        return LatentAttention(
            form=self.form, sequences=sequences, queries=queries, keys=keys, pairs=pairs, heads=self.heads,
            content=self.content, rotary=self.rotary, value=self.value, latent=self.latent, cache=self.cache)
