"""Kernel families: what one launch computes and moves, not how long that takes.

To add a family, add a file with a frozen attrs class whose fields are the
launch's shape, with the three members of `Kernel`.  Oracles then know it at
once.  `tests/laws` holds every family to: nothing negative, and no less work
for a larger shape.
"""

from collections.abc import Sequence
from math import ceil
from typing import Literal, Protocol

from attrs import frozen

from ksim.flow.batch import Batch
from ksim.foundation.units import DType

#: Prompts, of several new tokens, and decodes, of one, are often computed by kernels of their own.
Phase = Literal["prompts", "decodes"]
PHASES: tuple[Phase, ...] = ("prompts", "decodes")


def counts(phase: Phase, batch: Batch) -> tuple[int, int, int, int]:
    """Sequences, queries, keys with new tokens among them, and causal pairs of both in one phase of *batch*."""
    if phase == "decodes":
        sequences = len(batch.contexts)
        keys = batch.contexts.total + sequences
        return sequences, sequences, keys, keys
    return (len(batch.chunks), sum(new for new, _ in batch.chunks), sum(new + context for new, context in batch.chunks),
            sum(new * context + new * (new + 1) // 2 for new, context in batch.chunks))


@frozen
class Work:
    """Arithmetic in FLOP of number format `dtype`, and traffic to and from device memory in bytes.

    `padded` is what the arithmetic units do where tiles have to be filled up, if that is more than `flops`.
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

    `flops` (tiles filled up to their full size) and `l2_bytes` (operands that a
    block reads through the L2 cache) are of an average block, `longest` the
    FLOP of the largest.  `extra_bytes` is device-memory traffic beyond the
    kernel's own, such as the partial sums of split-K.
    """

    name: str
    blocks: float
    flops: float
    l2_bytes: float = 0.0
    extra_bytes: float = 0.0
    longest: float = 0.0

    def waves(self, sms: int) -> int:
        """How often the blocks fill *sms* SMs, the last time perhaps not wholly."""
        return ceil(self.blocks / sms)

    def idle(self, sms: int) -> float:
        """The share of *sms* SMs that have no block in the last wave."""
        return (self.waves(sms) * sms - self.blocks) / sms

    def busiest(self, sms: int) -> float:
        """How many average blocks the busiest of *sms* SMs works off.

        Equal blocks come in whole waves.  Unequal ones are balanced by taking
        the largest first, until the largest alone is what takes longest.
        """
        if self.longest <= self.flops:
            return self.waves(sms)
        return max(self.blocks / sms, self.longest / self.flops)


class Kernel(Protocol):
    """A hashable shape."""

    @property
    def family(self) -> str:
        """What kind of kernel this is, for reports and for oracles that know kinds."""
        ...

    @property
    def work(self) -> Work: ...

    def launches(self, sms: int) -> Sequence[Launch]:
        """The ways to launch it that are worth a thought on *sms* SMs; none if it spreads evenly whatever it is."""
        ...
