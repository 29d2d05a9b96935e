"""Products with the matrices of LoRA adapters: vLLM's Triton kernels `lora_shrink` and `lora_expand`."""

from collections.abc import Sequence
from functools import cached_property
from math import ceil
from typing import Literal

from attrs import frozen

from ksim.compute.kernels import Launch, Work
from ksim.compute.kernels.gemm import filled
from ksim.foundation.units import DType

__all__ = ["LoraGemm"]

Stage = Literal["shrink", "expand"]
#: Numbers, and how often each comes.
Counts = tuple[tuple[int, int], ...]
#: vLLM's default tiles (lora/ops/triton_ops/utils.py, 0.33): rows and columns, and from how many tokens on a shrink
#: splits its depth into fewer parts.
SHRINK, EXPAND, EXPAND_SLICES = (32, 16), (64, 128), (64, 64)
SPLIT_FEW, SPLIT_MANY, MANY = 64, 8, 128
#: Bytes that say of a token whose it is, and of a launch which adapters there are.
MAPPING, METADATA = 8, 64


@frozen(cache_hash=True)
class LoraGemm:
    """One of two grouped products beside a product of the base model, with matrices A and B of each adapter's own.

    A shrink is ``h[slice, rows, rank] = x[rows, k] @ A[slice, k, rank]`` in FP32, an expand ``y[rows, n of slice] +=
    h[slice, rows, rank] @ B[slice, rank, n]``.  `rows` holds pairs (tokens, number of adapters with so many), `widths`
    pairs (k or n, number of slices with so many): a product of queries, keys and values has three slices.  Matrices are
    padded to one rank, as vLLM stores them.
    """

    stage: Stage
    rows: Counts
    widths: Counts
    rank: int

    def __str__(self) -> str:
        return f"{self.tokens} rows, {self.adapters} adapters, {self.slices} slices, {self.width} x rank {self.rank}"

    @property
    def family(self) -> str:
        return f"lora_{self.stage}"

    @cached_property
    def tokens(self) -> int:
        return sum(tokens * adapters for tokens, adapters in self.rows)

    @cached_property
    def adapters(self) -> int:
        return sum(adapters for _, adapters in self.rows)

    @cached_property
    def slices(self) -> int:
        return sum(slices for _, slices in self.widths)

    @cached_property
    def width(self) -> int:
        """The widths of all slices together."""
        return sum(width * slices for width, slices in self.widths)

    @cached_property
    def work(self) -> Work:
        weights = self.adapters * self.rank * self.width * DType.BF16.bytes
        hidden = self.tokens * self.rank * self.slices * DType.FP32.bytes
        wide = self.tokens * DType.BF16.bytes * (self.width if self.stage == "expand" else self._widest)
        reads, writes = (wide, hidden) if self.stage == "shrink" else (hidden + wide, wide)
        filled_rows = sum(filled(tokens) * adapters for tokens, adapters in self.rows)
        return Work(
            flops=2.0 * self.tokens * self.rank * self.width,
            reads=weights + reads + MAPPING * self.tokens + METADATA,
            writes=writes,
            dtype=DType.BF16,
            padded=2.0 * filled_rows * self.rank * self.width,
        )

    @property
    def _widest(self) -> int:
        """The width of the input of a shrink, which all slices read."""
        return max(width for width, _ in self.widths)

    def launches(self, sms: int) -> Sequence[Launch]:
        """The one that vLLM's defaults make; each adapter fills up whole tiles of its own."""
        return (self._shrink(),) if self.stage == "shrink" else (self._expand(),)

    def _row_tiles(self, rows: int) -> int:
        return sum(ceil(tokens / rows) * adapters for tokens, adapters in self.rows)

    def _shrink(self) -> Launch:
        (rows, columns), split = SHRINK, SPLIT_FEW if self.tokens < MANY else SPLIT_MANY
        depth, across = self.width / self.slices / split, ceil(self.rank / columns) * self.slices * split
        return Launch(f"{rows}x{columns}/{split}", self._row_tiles(rows) * across,
                      flops=2.0 * rows * columns * depth, l2_bytes=(rows + columns) * depth * DType.BF16.bytes)

    def _expand(self) -> Launch:
        rows, columns = EXPAND_SLICES if self.slices > 1 else EXPAND
        across = sum(ceil(width / columns) * slices for width, slices in self.widths)
        element = rows * DType.FP32.bytes + columns * DType.BF16.bytes
        return Launch(f"{rows}x{columns}", self._row_tiles(rows) * across, flops=2.0 * rows * columns * self.rank,
                      l2_bytes=element * self.rank)
