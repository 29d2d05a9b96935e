"""Kernels of one kind as one, whose numbers are columns."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import fields, frozen
from numpy.typing import NDArray

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.batched_gemm import BatchedGemm
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.oracles.efficiency.growing import Line, Sized

__all__ = ["COLUMNAR", "Alike", "Several", "alike"]

#: Kinds whose work is columns where their numbers are.
COLUMNAR = (Gemm, BatchedGemm, Pointwise)


@frozen(eq=False)
class Several:
    """So many `sizes` of the first of `kinds`, as many of the second, and so on; they differ in their numbers alone,
    but for what family they are of.

    `kernel` stands for all: its numbers are columns of (kinds x sizes,), and its family is that of the first.
    """

    kernel: Any
    kinds: Sequence[Kernel]
    sizes: int

    def __len__(self) -> int:
        return len(self.kinds) * self.sizes

    def each(self) -> list[Kernel]:
        """One by one."""
        return [self.at(row) for row in range(len(self))]

    def at(self, row: int) -> Kernel:
        """The one at *row* of the columns."""
        kind: Any = self.kinds[row // self.sizes]
        columns = {each.name: getattr(self.kernel, each.name) for each in fields(type(kind))}
        found: Kernel = type(kind)(*[column[row].item() if isinstance(column, np.ndarray) else getattr(kind, name)
                                     for name, column in columns.items()])
        return found


@frozen(eq=False)
class Alike:
    """Kernels that are one but for their numbers, all of which grow evenly; `places` are theirs among others.

    `lines` has columns of (kernels, 1) by field: by how much each grows, and from where.
    """

    places: NDArray[np.intp]
    kinds: Sequence[Kernel]
    lines: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]

    @classmethod
    def of(cls, places: Sequence[int], ops: Sequence[Sized]) -> "Alike":
        names = [each.name for each in fields(ops[0].kind)]
        lines = {name: _lines([op.values[place] for op in ops]) for place, name in enumerate(names)
                 if isinstance(ops[0].values[place], Line | int | float)}
        kinds = [op.at(1).kernel for op in ops]
        return cls(np.array(places), kinds, lines)  # type: ignore[arg-type] # which are kernels all

    def at(self, tokens: NDArray[np.int64]) -> Several:
        """Those of each number of *tokens*."""
        first: Any = self.kinds[0]
        values = [(each[0] * tokens + each[1]).ravel() if (each := self.lines.get(name)) else getattr(first, name)
                  for name in (each.name for each in fields(type(first)))]
        return Several(type(first)(*values), self.kinds, len(tokens))


def alike(ops: Iterable[tuple[int, Sized]]) -> list[Alike]:
    """*ops*, which have their places, those together that differ in numbers alone."""
    found: dict[object, list[tuple[int, Sized]]] = {}
    for place, op in ops:
        found.setdefault((op.kind, *_apart(op)), []).append((place, op))
    return [Alike.of(*zip(*each, strict=True)) for each in found.values()]


def _apart(op: Sized) -> Iterable[Any]:
    """What kernels must have in common beside their kind."""
    return (value for each, value in zip(fields(op.kind), op.values, strict=True)
            if each.name != "family" and not isinstance(value, Line | int | float))


def _lines(values: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Slopes and offsets of *values*, whole where all are."""
    lines = [value if isinstance(value, Line) else Line(0, value) for value in values]
    return np.array([[line.slope] for line in lines]), np.array([[line.offset] for line in lines])
