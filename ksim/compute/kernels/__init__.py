"""Kernel families: what one launch computes and moves, not how long that takes.

To add a family, add a file with a frozen attrs class whose fields are the launch's shape, with the three members of
`Kernel`.  Oracles then know it at once.  `tests/laws` checks every family: no number is negative, and a larger shape is
no less work.
"""

from collections.abc import Sequence
from math import ceil
from typing import Literal, Protocol

from attrs import frozen

from ksim.flow.batch import Batch
from ksim.foundation.units import DType

#: Prompts, of several new tokens, and decodes, of `Batch.width`, are often computed by kernels of their own.
Phase = Literal["prompts", "decodes"]
PHASES: tuple[Phase, ...] = ("prompts", "decodes")


def counts(phase: Phase, batch: Batch) -> tuple[int, int, int, int]:
    """Sequences, queries, keys with new tokens among them, and causal pairs of both in one phase of *batch*."""
    if phase == "decodes":
        sequences, width, cached = len(batch.contexts), batch.width, batch.contexts.total
        queries = sequences * width
        return sequences, queries, cached + queries, cached * width + queries * (width + 1) // 2
    return (len(batch.chunks), sum(new for new, _ in batch.chunks), sum(new + context for new, context in batch.chunks),
            sum(new * context + new * (new + 1) // 2 for new, context in batch.chunks))


@frozen
class Work:
    """Arithmetic in FLOP of number format `dtype`, and traffic to and from device memory in bytes.

    `padded` is the FLOP that tensor cores execute when partly filled tiles count as full, if that is more than `flops`.
    """

    flops: float
    reads: float
    writes: float
    dtype: DType
    padded: float = 0.0

    @property
    def bytes(self) -> float:
        return self.reads + self.writes


@frozen
class Launch:
    """One way to cut a kernel into thread blocks; each SM takes blocks one at a time.

    `flops` (of full tiles) and `l2_bytes` (operands read through the L2 cache) are of an average block, `longest` is
    the FLOP of the largest.  `extra_bytes` is device-memory traffic beyond the kernel's own, such as the partial sums
    of split-K.
    """

    name: str
    blocks: float
    flops: float
    l2_bytes: float = 0.0
    extra_bytes: float = 0.0
    longest: float = 0.0

    def waves(self, sms: int) -> int:
        """How many waves the blocks take on *sms* SMs; the last may be partial."""
        return ceil(self.blocks / sms)

    def idle(self, sms: int) -> float:
        """The share of *sms* SMs that have no block in the last wave."""
        return (self.waves(sms) * sms - self.blocks) / sms

    def busiest(self, sms: int) -> float:
        """How many average blocks the busiest of *sms* SMs runs.

        Equal blocks come in whole waves.  Unequal ones are balanced, largest first, until the largest alone decides.
        """
        if self.longest <= self.flops:
            return self.waves(sms)
        return max(self.blocks / sms, self.longest / self.flops)


class Kernel(Protocol):
    """The shape of one launch; hashable."""

    @property
    def family(self) -> str:
        """The kind of kernel, by which reports group and oracles look up."""
        ...

    @property
    def work(self) -> Work: ...

    def launches(self, sms: int) -> Sequence[Launch]:
        """The candidates that a library would choose among on *sms* SMs; none if the work spreads evenly anyway."""
        ...


class Countable(Kernel, Protocol):
    """A kernel whose counts of sequences, tokens and the like a batch decides."""

    def counted(self, batch: Batch) -> Kernel | None:
        """This kernel with the counts of its part of *batch*; None where that is nothing."""
        ...


@frozen
class OverBatch:
    """A launch for any batch: `kernel` has the shape on one rank, and no counts."""

    kernel: Countable

    def over(self, batch: Batch) -> Kernel | None:
        """The kernel that is launched for *batch*; None if it has nothing to do there."""
        return self.kernel.counted(batch)
