"""Mamba's selective scan: each channel keeps a few numbers of a sequence, however long it is."""

from collections.abc import Sequence

from attrs import frozen

from ksim.compute.kernels import Launch, Phase, Work, counts
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

__all__ = ["SelectiveScan"]


@frozen
class SelectiveScan:
    """`tokens` of `sequences` decay, update and read `states` numbers of each channel, kept in format `state`.

    (Mamba, arXiv 2312.00752.)  A channel has an input, a time step and a gate a token; all share two vectors of
    `states` numbers.  Decays are exponentials, each of which counts as one FLOP, in FP32 for prompts and decodes alike.
    """

    phase: Phase
    sequences: int
    tokens: int
    channels: int
    states: int
    state: DType = DType.FP32

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
class ScanLayer:
    """The shape of the scan on one rank; the batch decides the rest."""

    phase: Phase
    channels: int
    states: int
    state: DType = DType.FP32

    def over(self, batch: Batch) -> SelectiveScan | None:
        """The kernel that scans its phase of *batch*; None where that is nothing."""
        sequences, tokens, _, _ = counts(self.phase, batch)
        return SelectiveScan(self.phase, sequences, tokens, self.channels, self.states,
                             self.state) if sequences else None
