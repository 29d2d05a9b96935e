"""The gated delta rule: linear attention that keeps one matrix for each head of a sequence, however long it is."""

from collections.abc import Sequence
from math import ceil

from attrs import frozen

from ksim.compute.kernels import Launch, Phase, Work
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

__all__ = ["DeltaRule"]

#: Tokens of a prompt that are computed together, as in FLA's and FlashInfer's kernels.
CHUNK = 64


@frozen
class DeltaRule:
    """`tokens` update and read `heads` matrices (`size` x `size`, in format `state`) of each of `sequences`.

    (Gated Delta Networks, arXiv 2412.06464.)  Prompts take `chunks` of 64 tokens in all; the longest sequence has
    `longest`, one after the other.  Decodes update a matrix token by token.  Queries and keys have `key_heads` heads.
    Matrices decay by a number a head or, in Kimi Delta Attention (arXiv 2510.26692), `by_channel`; prompts then have
    kernels of their own.
    """

    phase: Phase
    sequences: int
    tokens: int
    chunks: int
    longest: int
    heads: int
    key_heads: int
    size: int
    state: DType = DType.FP32
    by_channel: bool = False

    @property
    def family(self) -> str:
        return "kda_prompts" if self.by_channel and self.phase == "prompts" else f"delta_{self.phase}"

    def __str__(self) -> str:
        return f"{self.sequences} seqs, {self.tokens} tokens, {self.heads}x{self.size}x{self.size}"

    @property
    def work(self) -> Work:
        row = self.size * DType.BF16.bytes
        matrices, kept = self.heads * self.size**2 * self.state.bytes, self.sequences
        if self.phase == "decodes":
            kept = self.tokens  # those after each token, for any of them may be the last that is accepted
        return Work(
            flops=float(self.heads * self.tokens * self._per_token),
            reads=self.tokens * row * (2 * self.key_heads + self.heads) + self.sequences * matrices,
            writes=self.tokens * row * self.heads + kept * matrices,
            dtype=DType.BF16 if self.phase == "prompts" else DType.FP32,
        )

    @property
    def _per_token(self) -> int:
        """FLOP of a token and head: prediction, update and output are each a product with the matrix.

        Chunks add scores of queries with keys and of keys with keys, and the sums that both weigh.
        """
        products = 6 * self.size**2
        return products + 8 * CHUNK * self.size if self.phase == "prompts" else products

    def launches(self, sms: int) -> Sequence[Launch]:
        """One thread block a matrix, which computes its sequence's chunks in turn."""
        blocks = self.sequences * self.heads
        flops = self.work.flops / blocks
        return [Launch("a head a block", blocks, flops, longest=flops * self.longest * self.sequences / self.chunks)]

    def steps(self, sms: int) -> float:
        """Chunks that *sms* SMs compute one after the other: those of the longest sequence, or of all waves.

        Decodes have none.
        """
        if self.phase == "decodes":
            return 0.0
        return max(self.longest, ceil(self.sequences * self.heads / sms) * self.chunks / self.sequences)


@frozen
class DeltaLayer:
    """The shape of the delta rule on one rank; the batch decides the rest."""

    phase: Phase
    heads: int
    key_heads: int
    size: int
    state: DType = DType.FP32
    by_channel: bool = False

    def over(self, batch: Batch) -> DeltaRule | None:
        """The kernel that computes its phase of *batch*; None where that is nothing."""
        news = [batch.width] * len(batch.contexts) if self.phase == "decodes" else [new for new, _ in batch.chunks]
        if not news:
            return None
        chunks = [ceil(new / CHUNK) for new in news]
        return DeltaRule(
            phase=self.phase, sequences=len(news), tokens=sum(news), chunks=sum(chunks), longest=max(chunks),
            heads=self.heads, key_heads=self.key_heads, size=self.size, state=self.state,
            by_channel=self.by_channel)
