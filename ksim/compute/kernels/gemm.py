"""Dense matrix products.

Batched matrix products of equal shape, such as one for each head.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import ceil

from attrs import frozen

from ksim.compute.kernels import Launch, Work
from ksim.foundation.units import DType

__all__ = ["Gemm", "BatchedGemm"]


#: Thread-block tiles (rows, columns) of cuBLAS and CUTLASS kernels that library heuristics choose among.
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 256), (64, 128), (64, 64), (32, 64), (16, 64))
FEWEST_ROWS = 16
#: Into how many parts a library splits the contracted dimension when there are too few tiles.
SPLITS = (1, 2, 3, 4, 6, 8, 16)
#: No split leaves a block fewer elements of the contracted dimension than this.
MIN_SPLIT_K = 256


def filled(rows: int) -> int:
    """*rows*, rounded up to the fewest that tensor cores multiply at a time."""
    return -(-rows // FEWEST_ROWS) * FEWEST_ROWS


@frozen
class Gemm:
    """``out[m, n] = x[m, k] @ w[k, n]`` in `activations`, weights stored in `weights`, result in BF16."""

    m: int
    n: int
    k: int
    weights: DType = DType.BF16
    activations: DType = DType.BF16

    family = "gemm"

    def __str__(self) -> str:
        template, numbers = self.printed
        return template.format(*numbers)

    @property
    def printed(self) -> tuple[str, tuple[float, ...]]:
        """How it prints: a text, and the numbers that fill its places."""
        return f"{{:.0f}}x{{:.0f}}x{{:.0f}} {self.weights}", (self.m, self.n, self.k)

    @cached_property
    def work(self) -> Work:
        return Work(
            flops=2.0 * self.m * self.n * self.k,
            reads=self.k * self.n * self.weights.bytes + self.m * self.k * self.activations.bytes,
            writes=self.m * self.n * DType.BF16.bytes,
            dtype=self.activations.element,
            padded=2.0 * filled(self.m) * self.n * self.k,
        )

    def launches(self, sms: int) -> Sequence[Launch]:
        return list(self._launches(sms))

    def _launches(self, sms: int) -> Iterator[Launch]:
        element = max(self.weights.bytes, self.activations.bytes)
        for rows, columns in TILES:
            if rows >= 2 * self.m and rows > FEWEST_ROWS:
                continue  # a tile more than half empty: a smaller one does the same work
            tiles = ceil(self.m / rows) * ceil(self.n / columns)
            for split in SPLITS:
                if split > 1 and (self.k < split * MIN_SPLIT_K or tiles * split > 4 * sms):
                    break
                depth = self.k / split
                partial = 2.0 * (split - 1) * self.m * self.n * DType.FP32.bytes
                yield Launch(
                    name=f"{rows}x{columns}" + (f"/{split}" if split > 1 else ""),
                    blocks=tiles * split,
                    flops=2.0 * rows * columns * depth,
                    l2_bytes=(rows + columns) * depth * element,
                    extra_bytes=partial,
                )


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
