"""Kernels that every model launches: matrix products, and what only moves memory.

Matrix products are dense, batched, such as one for each head, grouped, with one for each expert that has tokens, or
with the matrices of LoRA adapters (vLLM's Triton kernels `lora_shrink` and `lora_expand`).
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import ceil
from typing import Literal

from attrs import frozen

from ksim.compute.kernels import Launch, Work
from ksim.foundation.units import DType

__all__ = ["Gemm", "BatchedGemm", "GroupedGemm", "LoraGemm", "Pointwise"]


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
        """Its text as a template, and the numbers that fill it."""
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
        """Its text as a template, and the numbers that fill it."""
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


#: Tiles (rows, columns) of vLLM's Triton fused-experts kernel, by its default and tuned configurations.
EXPERT_TILES = ((128, 128), (64, 128), (32, 64), (16, 64))


@frozen
class GroupedGemm:
    """``out[rows of e, n] = x[rows of e, k] @ w[e, k, n]`` for every expert e with rows.

    `expert_rows` holds pairs (rows, number of experts with so many); an average rank has fractions of experts.
    Experts without rows are neither read nor computed.  `inputs` is the number of different rows of x, of which one may
    go to several experts: the others are read from the L2 cache.  `tokens` entered the layer, each as several rows.
    """

    expert_rows: tuple[tuple[int, float], ...]
    n: int
    k: int
    tokens: int
    weights: DType = DType.BF16
    activations: DType = DType.BF16
    inputs: int | None = None

    family = "grouped_gemm"

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.active} experts, {self.n}x{self.k} {self.weights}"

    @cached_property
    def rows(self) -> float:
        return sum(rows * experts for rows, experts in self.expert_rows)

    @cached_property
    def active(self) -> float:
        """The number of experts that have rows."""
        return sum(experts for rows, experts in self.expert_rows if rows)

    @cached_property
    def work(self) -> Work:
        inputs = self.rows if self.inputs is None else self.inputs
        return Work(
            flops=2.0 * self.rows * self.n * self.k,
            reads=self.active * self.k * self.n * self.weights.bytes + inputs * self.k * self.activations.bytes,
            writes=self.rows * self.n * DType.BF16.bytes,
            dtype=self.activations.element,
            padded=2.0 * sum(filled(rows) * experts for rows, experts in self.expert_rows) * self.n * self.k,
        )

    def launches(self, sms: int) -> Sequence[Launch]:
        """One tile size serves all experts, and each expert's rows fill up whole tiles of their own."""
        element = max(self.weights.bytes, self.activations.bytes)
        return [
            Launch(
                name=f"{rows}x{columns}",
                blocks=sum(ceil(held / rows) * experts for held, experts in self.expert_rows) * ceil(self.n / columns),
                flops=2.0 * rows * columns * self.k,
                l2_bytes=(rows + columns) * self.k * element,
            )
            for rows, columns in EXPERT_TILES
        ]


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
        """Its text as a template, and the numbers that fill it."""
        return "{:.3g} MB", ((self.read_bytes + self.write_bytes) / 1e6,)

    @property
    def work(self) -> Work:
        return Work(self.flops, self.read_bytes, self.write_bytes, DType.FP32)

    def launches(self, sms: int) -> Sequence[Launch]:
        return ()
