"""Grouped matrix products: one GEMM per expert that has tokens, all in one launch."""

from collections.abc import Sequence
from functools import cached_property
from math import ceil

from attrs import frozen

from ksim.compute.kernels import Launch, Work
from ksim.compute.kernels.gemm import filled
from ksim.foundation.units import DType

__all__ = ["GroupedGemm"]

#: Tiles (rows, columns) of vLLM's Triton fused-experts kernel, by its default and tuned configurations.
TILES = ((128, 128), (64, 128), (32, 64), (16, 64))


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
        """How many experts have rows."""
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
            for rows, columns in TILES
        ]
