"""Kernels that only move memory: norms, activations, rotary embeddings, cache writes, sampling."""

from collections.abc import Sequence

from attrs import frozen

from ksim.compute.kernels import Launch, Work
from ksim.foundation.units import DType

__all__ = ["Pointwise"]


@frozen
class Pointwise:
    """Read and write so many bytes, with about one FLOP for each number read.

    A thread block takes one of `rows`, such as a token of a norm.  `cold_bytes` of the reads are from a table that no
    cache holds, such as a vocabulary's embeddings; the others may still be in the L2 cache.
    """

    family: str
    read_bytes: float
    write_bytes: float
    flops: float
    rows: int
    cold_bytes: float = 0.0

    def __str__(self) -> str:
        template, numbers = self.printed
        return template.format(*numbers)

    @property
    def printed(self) -> tuple[str, tuple[float, ...]]:
        """How it prints: a text, and the numbers that fill its places."""
        return "{:.3g} MB", ((self.read_bytes + self.write_bytes) / 1e6,)

    @property
    def work(self) -> Work:
        return Work(self.flops, self.read_bytes, self.write_bytes, DType.FP32)

    def launches(self, sms: int) -> Sequence[Launch]:
        return ()
