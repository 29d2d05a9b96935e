"""Launches of any number of tokens, known from those of a few: sizes are affine in the tokens, all else stays."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import fields, frozen
from numpy.typing import NDArray

from ksim.compute.graph import Block, Op
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.batched_gemm import BatchedGemm
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.compute.kernels.sweep import KernelSweep

__all__ = ["COLUMNAR", "DRAWN", "AffineBlocks", "AffineKernel", "AffineSweep", "Line", "affine_sweeps"]

#: Kinds whose work is columns where their numbers are.
COLUMNAR = (Gemm, BatchedGemm, Pointwise)
#: Numbers of tokens from which lines are drawn, and others that they must meet.  No prime is shared out evenly, or in
#: whole tiles.
DRAWN, MET = (1009, 4507), (1, 7, 1013, 30011)


@frozen
class Line:
    """A number, whole where the slope is: `slope` for each token and an `offset`."""

    slope: Any
    offset: Any

    def at(self, tokens: int) -> Any:
        return self.slope * tokens + self.offset


@frozen
class AffineKernel:
    """An op whose kernel is of a `kind`, with fields of which some are lines."""

    label: str
    kind: type
    values: tuple[Any, ...]

    def at(self, tokens: int) -> Op:
        return Op(self.label, self.kind(*[value.at(tokens) if type(value) is Line else value for value in self.values]))


@frozen
class AffineBlocks:
    """Blocks of ops, each of which is the same for any number of tokens, or sized by them."""

    blocks: tuple[tuple[tuple[Op | AffineKernel, ...], int], ...]

    @classmethod
    def of(cls, lower: Callable[[int], Sequence[Block]]) -> "AffineBlocks | None":
        """What *lower* makes of any number of tokens; None where that is not the same kernels, growing evenly."""
        one, other = map(lower, DRAWN)
        drawn = [(_drawn(block.ops, following.ops), block.repeat) for block, following in zip(one, other, strict=False)]
        if not all(ops is not None for ops, _ in drawn):
            return None
        grown = cls(tuple((ops, repeat) for ops, repeat in drawn if ops is not None))
        return grown if all(grown.at(tokens) == [*lower(tokens)] for tokens in (*DRAWN, *MET)) else None

    def at(self, tokens: int) -> list[Block]:
        """Those of so many *tokens*."""
        return [Block(tuple(op if type(op) is Op else op.at(tokens) for op in ops), repeat)  # type: ignore[union-attr]
                for ops, repeat in self.blocks]


def _drawn(ops: Sequence[Op], others: Sequence[Op]) -> tuple[Op | AffineKernel, ...] | None:
    """Lines through *ops* and the *others*; None where one cannot be drawn."""
    found = [_line(op, other) for op, other in zip(ops, others, strict=False)]
    return None if len(ops) != len(others) or None in found else tuple(op for op in found if op is not None)


def _line(op: Op, other: Op) -> Op | AffineKernel | None:
    if op == other:
        return op
    if type(other.kernel) is not type(op.kernel) or op.mean is not None:
        return None
    return _sized(op.label, op.kernel, other.kernel)


def _sized(label: str, kernel: Any, other: Any) -> AffineKernel:
    names = [each.name for each in fields(type(kernel))]
    values = tuple(_through(getattr(kernel, name), getattr(other, name)) for name in names)
    return AffineKernel(label, type(kernel), values)


def _through(value: Any, other: Any) -> Any:
    """What grows from *value* to the *other*, or *value* where that is no number."""
    if value == other or not all(isinstance(each, int | float) for each in (value, other)):
        return value
    begin, end = DRAWN
    slope = (other - value) / (end - begin)
    if isinstance(value, int):
        slope = round(slope)
    return Line(slope, value - slope * begin)


@frozen(eq=False)
class AffineSweep:
    """Kernels that are the `first` but for their numbers and families; `places` are theirs among others.

    All numbers grow evenly.  `lines` has columns of (kernels, 1) by field: by how much each grows, and from where.
    """

    places: NDArray[np.intp]
    first: Kernel
    families: Sequence[str]
    lines: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]

    @classmethod
    def of(cls, places: Sequence[int], ops: Sequence[AffineKernel]) -> "AffineSweep":
        names = [each.name for each in fields(ops[0].kind)]
        lines = {name: _lines([op.values[place] for op in ops]) for place, name in enumerate(names)
                 if isinstance(ops[0].values[place], Line | int | float)}
        kernels: list[Any] = [op.at(1).kernel for op in ops]
        return cls(np.array(places), kernels[0], [kernel.family for kernel in kernels], lines)

    def at(self, tokens: NDArray[np.int64]) -> KernelSweep:
        """Those of each number of *tokens*: of the first kernel, then of the second, and so on."""
        first: Any = self.first
        values = [(each[0] * tokens + each[1]).ravel() if (each := self.lines.get(name)) else getattr(first, name)
                  for name in (each.name for each in fields(type(first)))]
        return KernelSweep(type(first)(*values), self.families, np.repeat(np.arange(len(self.families)), len(tokens)))


def affine_sweeps(ops: Iterable[tuple[int, AffineKernel]]) -> list[AffineSweep]:
    """*ops*, which have their places, those together that differ in numbers alone."""
    found: dict[object, list[tuple[int, AffineKernel]]] = {}
    for place, op in ops:
        found.setdefault((op.kind, *_apart(op)), []).append((place, op))
    return [AffineSweep.of(*zip(*each, strict=True)) for each in found.values()]


def _apart(op: AffineKernel) -> Iterable[Any]:
    """What kernels must have in common beside their kind."""
    return (value for each, value in zip(fields(op.kind), op.values, strict=True)
            if each.name != "family" and not isinstance(value, Line | int | float))


def _lines(values: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Slopes and offsets of *values*, whole where all are."""
    lines = [value if isinstance(value, Line) else Line(0, value) for value in values]
    return np.array([[line.slope] for line in lines]), np.array([[line.offset] for line in lines])
