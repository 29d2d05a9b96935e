"""Kernels of layers that keep a state of each sequence, however long it is.

These are the short causal convolution before linear attention, Mamba's selective scan, matrices of state that decay by
a number a head (Mamba-2, lightning attention), and the gated delta rule of linear attention.
"""

from collections.abc import Sequence
from math import ceil

from attrs import evolve, frozen

from ksim.compute.kernels import Launch, Phase, Work, counts
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

__all__ = ["CausalConv", "SelectiveScan", "StateSpace", "DeltaRule"]


@frozen
class CausalConv:
    """A filter of `width` over `tokens` of `sequences`, each of `channels` numbers.

    A sequence keeps its last `width` - 1 tokens, which are read and written, and in decodes those that may be rejected.
    Prompts and decodes have kernels each.
    """

    phase: Phase
    channels: int
    width: int
    sequences: int = 0
    tokens: int = 0

    def counted(self, batch: Batch) -> "CausalConv | None":
        sequences, tokens, _, _ = counts(self.phase, batch)
        return evolve(self, sequences=sequences, tokens=tokens) if sequences else None

    @property
    def family(self) -> str:
        return f"conv_{self.phase}"

    def __str__(self) -> str:
        return f"{self.sequences} seqs, {self.tokens} tokens, {self.channels} channels"

    @property
    def work(self) -> Work:
        kept = self.sequences * (self.width - 1) + (self.tokens - self.sequences if self.phase == "decodes" else 0)
        moved = self.channels * DType.BF16.bytes * (self.tokens + kept)
        weights = self.channels * self.width * DType.BF16.bytes
        return Work(2.0 * self.tokens * self.channels * self.width, moved + weights, moved, DType.FP32)

    def launches(self, sms: int) -> Sequence[Launch]:
        return ()


@frozen
class SelectiveScan:
    """`tokens` of `sequences` decay, update and read `states` numbers of each channel, kept in format `state`.

    (Mamba, arXiv 2312.00752.)  A channel has an input, a time step and a gate a token; all share two vectors of
    `states` numbers.  Decays are exponentials, each of which counts as one FLOP, in FP32 for prompts and decodes alike.
    """

    phase: Phase
    channels: int
    states: int
    state: DType = DType.FP32
    sequences: int = 0
    tokens: int = 0

    def counted(self, batch: Batch) -> "SelectiveScan | None":
        sequences, tokens, _, _ = counts(self.phase, batch)
        return evolve(self, sequences=sequences, tokens=tokens) if sequences else None

    @property
    def family(self) -> str:
        return f"scan_{self.phase}"

    def __str__(self) -> str:
        return f"{self.sequences} seqs, {self.tokens} tokens, {self.channels}x{self.states}"

    @property
    def work(self) -> Work:
        kept = self.tokens if self.phase == "decodes" else self.sequences
        of_states = self.channels * self.states
        return Work(
            flops=7.0 * self.tokens * of_states,
            reads=self.tokens * (3 * self.channels + 2 * self.states) * DType.BF16.bytes
            + of_states * (self.sequences * self.state.bytes + DType.FP32.bytes),
            writes=self.tokens * self.channels * DType.BF16.bytes + kept * of_states * self.state.bytes,
            dtype=DType.FP32,
        )

    def launches(self, sms: int) -> Sequence[Launch]:
        return ()


@frozen
class StateSpace:
    """`tokens` decay, update and read `heads` matrices (`size` x `states`, in format `state`) of each of `sequences`.

    (Mamba-2, arXiv 2405.21060, section 6.)  The two vectors of `states` numbers that write and read a matrix are shared
    by the heads of each of `groups`; in lightning attention (arXiv 2401.04658) they are keys and queries, and a group
    is a head.  Prompts take `chunks` of `chunk` tokens in all.  Decodes update the matrices token by token, and keep
    those after each token, as vLLM does where tokens may be rejected.
    """

    phase: Phase
    heads: int
    groups: int
    size: int
    states: int
    chunk: int
    state: DType = DType.FP32
    sequences: int = 0
    tokens: int = 0
    chunks: int = 0

    def counted(self, batch: Batch) -> "StateSpace | None":
        sequences, tokens, _, _ = counts(self.phase, batch)
        chunks = sum(ceil(new / self.chunk) for new, _ in batch.chunks) if self.phase == "prompts" else sequences
        return evolve(self, sequences=sequences, tokens=tokens, chunks=chunks) if sequences else None

    @property
    def family(self) -> str:
        return f"ssd_{self.phase}"

    def __str__(self) -> str:
        return f"{self.sequences} seqs, {self.tokens} tokens, {self.heads}x{self.size}x{self.states}"

    @property
    def work(self) -> Work:
        values, pairs = self.heads * self.size, 2 * self.groups * self.states
        read, kept = self.sequences, self.tokens if self.phase == "decodes" else self.sequences
        matrices = values * self.states * self.state.bytes
        return Work(
            flops=float(self.tokens * self._per_token),
            reads=self.tokens * DType.BF16.bytes * (values + pairs + self.heads) + read * matrices + self._passed,
            writes=self.tokens * DType.BF16.bytes * values + kept * matrices + self._passed,
            dtype=DType.BF16 if self.phase == "prompts" else DType.FP32,
        )

    @property
    def _per_token(self) -> int:
        """FLOP of a token: update and output are a product with the matrix each; decodes multiply by the decay, too.

        Chunks have scores of each group's vectors with each other, and the sum of values that they weigh.
        """
        matrices = self.heads * self.size * self.states
        if self.phase == "decodes":
            return 5 * matrices
        return 4 * matrices + 2 * self.chunk * (self.groups * self.states + self.heads * self.size)

    @property
    def _passed(self) -> float:
        """Bytes that the kernels of prompts hand on to each other, and read as well: scores of each chunk, and its
        matrices, twice: before and after those of the chunks before it are added."""
        if self.phase == "decodes":
            return 0.0
        scores, matrices = self.groups * self.chunk**2, self.heads * self.size * self.states
        return self.chunks * (scores + 2 * matrices) * DType.FP32.bytes

    def launches(self, sms: int) -> Sequence[Launch]:
        """One thread block a matrix; of prompts, one a chunk and head."""
        blocks = self.heads * (self.chunks if self.phase == "prompts" else self.sequences)
        return [Launch("a head a block", blocks, self.work.flops / blocks)]


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
    heads: int
    key_heads: int
    size: int
    state: DType = DType.FP32
    by_channel: bool = False
    sequences: int = 0
    tokens: int = 0
    chunks: int = 0
    longest: int = 0

    def counted(self, batch: Batch) -> "DeltaRule | None":
        news = [batch.width] * len(batch.contexts) if self.phase == "decodes" else [new for new, _ in batch.chunks]
        if not news:
            return None
        chunks = [ceil(new / CHUNK) for new in news]
        return evolve(self, sequences=len(news), tokens=sum(news), chunks=sum(chunks), longest=max(chunks))

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
