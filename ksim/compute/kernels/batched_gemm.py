"""Batched matrix products of equal shape, such as one for each head."""

from collections.abc import Sequence
from math import ceil

from attrs import frozen

from ksim.compute.kernels import Launch, Work
from ksim.compute.kernels.gemm import FEWEST_ROWS, TILES, filled
from ksim.foundation.units import DType

__all__ = ["BatchedGemm"]


@frozen
class BatchedGemm:
    """``out[i, m, n] = x[i, m, k] @ w[i, k, n]`` for `count` i, in BF16 as cuBLAS batches them."""

    count: int
    m: int
    n: int
    k: int

    family = "batched_gemm"

    def __str__(self) -> str:
        template, numbers = self.printed
        return template.format(*numbers)

    @property
    def printed(self) -> tuple[str, tuple[float, ...]]:
        """How it prints: a text, and the numbers that fill its places."""
        return "{:.0f} of {:.0f}x{:.0f}x{:.0f}", (self.count, self.m, self.n, self.k)

    @property
    def work(self) -> Work:
        size = DType.BF16.bytes * self.count
        return Work(2.0 * self.count * self.m * self.n * self.k, size * self.k * (self.n + self.m),
                    size * self.m * self.n, DType.BF16, 2.0 * self.count * filled(self.m) * self.n * self.k)

    def launches(self, sms: int) -> Sequence[Launch]:
        return [
            Launch(
                name=f"{rows}x{columns}",
                blocks=self.count * ceil(self.m / rows) * ceil(self.n / columns),
                flops=2.0 * rows * columns * self.k,
                l2_bytes=(rows + columns) * self.k * DType.BF16.bytes,
            )
            for rows, columns in TILES if rows < 2 * self.m or rows <= FEWEST_ROWS
        ]
