"""The launches of a step for any number of tokens, extrapolated from two: sizes are affine in the number of tokens.

`AffineBlocks` checks that on further numbers of tokens.  A `SweptPart` prices a part of a step for many numbers of
tokens at once, as sweeps.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from attrs import fields, frozen
from numpy.typing import NDArray

from ksim.compute.graph import BatchDependent, Block, Collective, KernelSweep, Op, is_batch_dependent
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.basic import BatchedGemm, Gemm, Pointwise
from ksim.cost.graphs import Launches
from ksim.cost.pricer import BatchLaunch, Part, Pricer, launched_of, parts_of
from ksim.flow.steps import KernelColumns, KernelCost

__all__ = ["COLUMNAR", "DRAWN", "AffineBlocks", "AffineKernel", "AffineSweep", "Line", "SweptPart", "affine_sweeps"]

#: Kernels whose `work` is columns where their numbers are columns.
COLUMNAR = (Gemm, BatchedGemm, Pointwise)
#: The two numbers of tokens through which lines are drawn, and others at which the lines are checked.  They are primes,
#: which divide neither among ranks nor into tiles.
DRAWN, CHECKED = (1009, 4507), (1, 7, 1013, 30011)


@frozen
class Line:
    """``slope x tokens + offset``; a whole number where both are."""

    slope: Any
    offset: Any

    def at(self, tokens: int) -> Any:
        return self.slope * tokens + self.offset


@frozen
class AffineKernel:
    """An op for any number of tokens: its kernel is of the class `kind` with `values`, some of which are lines."""

    label: str
    kind: type
    values: tuple[Any, ...]

    def at(self, tokens: int) -> Op:
        return Op(self.label, self.kind(*[value.at(tokens) if type(value) is Line else value for value in self.values]))


@frozen
class AffineBlocks:
    """Blocks for any number of tokens: an op is the same for all of them, or an `AffineKernel`."""

    blocks: tuple[tuple[tuple[Op | AffineKernel, ...], int], ...]

    @classmethod
    def of(cls, lower: Callable[[int], Sequence[Block]]) -> "AffineBlocks | None":
        """The blocks that *lower* makes of a number of tokens; None where their kernels are not affine in it."""
        few, many = map(lower, DRAWN)
        blocks = [(_lines_through(small.ops, large.ops), small.repeat) for small, large in zip(few, many, strict=False)]
        if not all(ops is not None for ops, _ in blocks):
            return None
        affine = cls(tuple((ops, repeat) for ops, repeat in blocks if ops is not None))
        return affine if all(affine.at(tokens) == [*lower(tokens)] for tokens in (*DRAWN, *CHECKED)) else None

    @classmethod
    def each(cls, lower: Callable[[int], Sequence[Block]]) -> "list[AffineBlocks | None]":
        """Each of the blocks that *lower* makes of any number of tokens, as `of`."""
        lowered = {tokens: lower(tokens) for tokens in (*DRAWN, *CHECKED)}
        return [cls.of(lambda tokens, place=place: [lowered[tokens][place]])  # type: ignore[misc]
                for place in range(len(lowered[DRAWN[0]]))]

    def at(self, tokens: int) -> list[Block]:
        """The blocks for so many *tokens*."""
        return [Block(tuple(op if type(op) is Op else op.at(tokens) for op in ops), repeat)  # type: ignore[union-attr]
                for ops, repeat in self.blocks]

    def without(self, missing: Collection[Op]) -> "AffineBlocks":
        """The blocks without the *missing* ops, for which a batch has nothing."""
        return AffineBlocks(tuple((tuple(op for op in ops if op not in missing), repeat)
                                  for ops, repeat in self.blocks))


def _lines_through(small: Sequence[Op], large: Sequence[Op]) -> tuple[Op | AffineKernel, ...] | None:
    """The ops that are *small* at the first of `DRAWN` and *large* at the second; None where one is not affine."""
    ops = [_line_through(*pair) for pair in zip(small, large, strict=False)]
    return None if len(small) != len(large) or None in ops else tuple(op for op in ops if op is not None)


def _line_through(small: Op, large: Op) -> Op | AffineKernel | None:
    if small == large:
        return small
    kernel: Any = small.kernel
    kind: Any = type(kernel)
    if type(large.kernel) is not kind or small.mean is not None:
        return None
    names = [one.name for one in fields(kernel.__class__)]
    values = tuple(_value_through(getattr(kernel, name), getattr(large.kernel, name)) for name in names)
    return AffineKernel(small.label, kind, values)


def _value_through(small: Any, large: Any) -> Any:
    """The line through two values of a field; the first of them where they are equal, or no numbers."""
    if small == large or not all(isinstance(value, int | float) for value in (small, large)):
        return small
    begin, end = DRAWN
    slope = (large - small) / (end - begin)
    if isinstance(small, int):
        slope = round(slope)
    return Line(slope, small - slope * begin)


@frozen(eq=False)
class AffineSweep:
    """Kernels of the class of `first` that differ from it in their numbers and families alone.

    `places` are their rows among the launches of a part.  `lines` has, for each field that is a number, the slopes and
    the offsets of the kernels: columns of (kernels, 1).
    """

    places: NDArray[np.intp]
    first: Kernel
    families: Sequence[str]
    lines: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]

    @classmethod
    def of(cls, places: Sequence[int], ops: Sequence[AffineKernel]) -> "AffineSweep":
        lines = {one.name: _lines([op.values[index] for op in ops]) for index, one in enumerate(fields(ops[0].kind))
                 if isinstance(ops[0].values[index], Line | int | float)}
        kernels: list[Any] = [op.at(1).kernel for op in ops]
        return cls(np.array(places), kernels[0], [kernel.family for kernel in kernels], lines)

    def at(self, tokens: NDArray[np.int64]) -> KernelSweep:
        """The kernels for each number of *tokens*: all of the first kernel, then all of the second, and so on."""
        first: Any = self.first
        values = [(line[0] * tokens + line[1]).ravel() if (line := self.lines.get(one.name)) else
                  getattr(first, one.name) for one in fields(type(first))]
        return KernelSweep(type(first)(*values), self.families, np.repeat(np.arange(len(self.families)), len(tokens)))


def affine_sweeps(ops: Iterable[tuple[int, AffineKernel]]) -> list[AffineSweep]:
    """Group *ops*, each with its row, into sweeps: ops whose kernels differ in numbers alone go together."""
    alike: dict[object, list[tuple[int, AffineKernel]]] = {}
    for row, op in ops:
        others = (value for one, value in zip(fields(op.kind), op.values, strict=True)
                  if one.name != "family" and not isinstance(value, Line | int | float))
        alike.setdefault((op.kind, *others), []).append((row, op))
    return [AffineSweep.of(*zip(*group, strict=True)) for group in alike.values()]


def _lines(values: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The slopes and the offsets of *values*, a row each; whole numbers where all are."""
    lines = [value if isinstance(value, Line) else Line(0, value) for value in values]
    return np.array([[line.slope] for line in lines]), np.array([[line.offset] for line in lines])


#: A launch that is the same for any number of tokens, or affine in it.
Launch = Op | AffineKernel


@frozen(eq=False, slots=False)
class SweptPart:
    """Prices a part of a step for many numbers of tokens at once.

    `ops` are its different launches.  Those of the `sweeps` are priced as columns, the `others` one by one.  `blocks`
    say what runs, and how often: rows of launches in that order, or -1 - the number of one of `batch_launches`.
    """

    pricer: Pricer
    ops: Sequence[Launch]
    sweeps: Sequence[AffineSweep]
    others: Sequence[Launch]
    blocks: Sequence[tuple[tuple[int, ...], int]]
    batch_launches: tuple[BatchLaunch, ...]

    @classmethod
    def of(cls, affine: AffineBlocks | None, pricer: Pricer) -> "SweptPart | None":
        """The part with these launches; None where they are not affine, ranks differ, or a kernel cannot be swept."""
        if affine is None or not all(_plain(op) for ops, _ in affine.blocks for op in ops):
            return None
        places: dict[Launch, int] = {}
        runs: dict[tuple[str, BatchDependent], int] = {}
        blocks = [(tuple(_place(op, repeat, places, runs) for op in ops), repeat) for ops, repeat in affine.blocks]
        ops = list(places)
        swept = {place: op for place, op in enumerate(ops)
                 if isinstance(op, AffineKernel) and op.kind is not Collective}
        sweeps, others = affine_sweeps(swept.items()), [place for place in range(len(ops)) if place not in swept]
        first = [place for sweep in sweeps for place in sweep.places.tolist()]
        order = {place: row for row, place in enumerate([*first, *others])}
        return cls(pricer, ops, sweeps, [ops[place] for place in others],
                   [(tuple(order.get(place, place) for place in launches), repeat) for launches, repeat in blocks],
                   tuple(BatchLaunch(*layer, count) for layer, count in runs.items()))

    def parts(self, tokens: Sequence[int]) -> list[Part]:
        """The part for each number of *tokens*."""
        column = np.array(tokens, dtype=np.int64)
        others = [cost for op in self.others for cost in self._each(op, tokens)]
        kernels = KernelColumns.joined([*(self._priced(sweep, column) for sweep in self.sweeps),
                                        *([KernelColumns.of(others)] if others else [])])
        return [*parts_of(kernels, self.blocks, len(tokens), self._launches, self.batch_launches)]

    def _priced(self, sweep: AffineSweep, tokens: NDArray[np.int64]) -> KernelColumns:
        return self.pricer.sweep([self.ops[place].label for place in sweep.places.tolist()], sweep.at(tokens))

    def _each(self, op: Launch, tokens: Sequence[int]) -> list[KernelCost]:
        """The costs of a launch that is not swept: a collective, or one that is the same for all *tokens*."""
        if isinstance(op, Op):
            return [self._fixed[op]] * len(tokens)
        messages: list[Any] = [(op.label, op.at(number).kernel) for number in tokens]
        return self.pricer.kernels(messages)

    @cached_property
    def _fixed(self) -> dict[Op, KernelCost]:
        ops = [op for op in self.others if isinstance(op, Op)]
        launches: list[Any] = [(op.label, op.kernel) for op in ops]
        return dict(zip(ops, self.pricer.kernels(launches), strict=True))

    @cached_property
    def _launches(self) -> Launches:
        """The numbers of launches, which are the same for any number of tokens."""
        order = [*(self.ops[place] for sweep in self.sweeps for place in sweep.places.tolist()), *self.others]
        kernels: list[Any] = [op.kernel if isinstance(op, Op) else op.at(1).kernel for op in order]
        return Launches.of([([(kernels[place], False) if place >= 0 else launched_of(self.batch_launches[-1 - place])
                              for place in places], repeat) for places, repeat in self.blocks])


def _plain(op: Launch) -> bool:
    """Whether columns can describe what *op* launches, or the batch decides it."""
    return op.mean is None if isinstance(op, Op) else issubclass(op.kind, (*COLUMNAR, Collective))


def _place(op: Launch, repeat: int, places: dict[Launch, int], runs: dict[tuple[str, BatchDependent], int]) -> int:
    """The row of *op* in *places*, which gets a new one if need be; -1 - its number if it depends on the batch.

    How often launches that depend on the batch run is counted in *runs*.
    """
    if isinstance(op, Op) and is_batch_dependent(op.kernel):
        launch = (op.label, op.kernel)
        runs[launch] = runs.get(launch, 0) + repeat
        return -1 - list(runs).index(launch)
    return places.setdefault(op, len(places))
