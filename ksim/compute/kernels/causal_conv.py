"""The short causal convolution before linear attention, channel by channel."""

from collections.abc import Sequence

from attrs import frozen

from ksim.compute.kernels import Launch, Phase, Work, counts
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

__all__ = ["CausalConv"]


@frozen
class CausalConv:
    """A filter of `width` over `tokens` of `sequences`, each of `channels` numbers.

    A sequence keeps its last `width` - 1 tokens, which are read and written, and in decodes those that may be rejected.
    Prompts and decodes have kernels each.
    """

    phase: Phase
    sequences: int
    tokens: int
    channels: int
    width: int

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
class ConvLayer:
    """The shape of the convolution on one rank; the batch decides the rest."""

    phase: Phase
    channels: int
    width: int

    def over(self, batch: Batch) -> CausalConv | None:
        """The kernel that convolves its phase of *batch*; None where that is nothing."""
        sequences, tokens, _, _ = counts(self.phase, batch)
        return CausalConv(self.phase, sequences, tokens, self.channels, self.width) if sequences else None
