"""Matrices of state that decay by a number a head: Mamba-2's state-space duality, and lightning attention."""

from collections.abc import Sequence
from math import ceil

from attrs import frozen

from ksim.compute.kernels import Launch, Phase, Work, counts
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

__all__ = ["StateSpace"]


@frozen
class StateSpace:
    """`tokens` decay, update and read `heads` matrices (`size` x `states`, in format `state`) of each of `sequences`.

    (Mamba-2, arXiv 2405.21060, section 6.)  The two vectors of `states` numbers that write and read a matrix are shared
    by the heads of each of `groups`; in lightning attention (arXiv 2401.04658) they are keys and queries, and a group
    is a head.  Prompts take `chunks` of `chunk` tokens in all.  Decodes update the matrices token by token, and keep
    those after each token, as vLLM does where tokens may be rejected.
    """

    phase: Phase
    sequences: int
    tokens: int
    chunks: int
    heads: int
    groups: int
    size: int
    states: int
    chunk: int
    state: DType = DType.FP32

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


@frozen
class StateSpaceLayer:
    """The shape of these matrices on one rank; the batch decides the rest."""

    phase: Phase
    heads: int
    groups: int
    size: int
    states: int
    chunk: int
    state: DType = DType.FP32

    def over(self, batch: Batch) -> StateSpace | None:
        """The kernel that computes its phase of *batch*; None where that is nothing."""
        sequences, tokens, _, _ = counts(self.phase, batch)
        if not sequences:
            return None
        chunks = sum(ceil(new / self.chunk) for new, _ in batch.chunks) if self.phase == "prompts" else sequences
        return StateSpace(
            phase=self.phase, sequences=sequences, tokens=tokens, chunks=chunks, heads=self.heads, groups=self.groups,
            size=self.size, states=self.states, chunk=self.chunk, state=self.state)
