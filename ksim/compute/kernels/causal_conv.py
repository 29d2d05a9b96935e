"""The short causal convolution before linear attention, over each channel by itself."""

from collections.abc import Sequence
from typing import Literal

from attrs import frozen

from ksim.compute.kernels import Launch, Work
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

__all__ = ["CausalConv"]

#: Prompts are convolved over their tokens; decodes update what they keep of the last ones, in another kernel.
Part = Literal["prompts", "decodes"]


@frozen
class CausalConv:
    """`tokens` of `sequences`, each of `channels` numbers, are weighed with the `width` - 1 tokens before.

    Each sequence keeps its last `width` - 1 tokens, which are read and written.
    """

    part: Part
    sequences: int
    tokens: int
    channels: int
    width: int

    @property
    def family(self) -> str:
        return f"conv_{self.part}"

    def __str__(self) -> str:
        return f"{self.sequences} seqs, {self.tokens} tokens, {self.channels} channels"

    @property
    def work(self) -> Work:
        moved = self.channels * DType.BF16.bytes * (self.tokens + self.sequences * (self.width - 1))
        weights = self.channels * self.width * DType.BF16.bytes
        return Work(2.0 * self.tokens * self.channels * self.width, moved + weights, moved, DType.FP32)

    def launches(self, sms: int) -> Sequence[Launch]:
        return ()


@frozen
class ConvLayer:
    """The convolution's shape on one rank before a batch is known."""

    part: Part
    channels: int
    width: int

    def over(self, batch: Batch) -> CausalConv | None:
        """The kernel that convolves its part of *batch*; None where that is nothing."""
        if self.part == "decodes":
            sequences = tokens = len(batch.contexts)
        else:
            sequences, tokens = len(batch.chunks), sum(new for new, _ in batch.chunks)
        return CausalConv(self.part, sequences, tokens, self.channels, self.width) if sequences else None
