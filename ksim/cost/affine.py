"""Launches of any number of tokens, known from those of a few: sizes are affine in the tokens, all else stays.

Parts of steps for many numbers of tokens are priced as sweeps.
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

    def without(self, missing: Collection[Op]) -> "AffineBlocks":
        """All but the *missing* ops, for which a batch has nothing."""
        return AffineBlocks(tuple((tuple(op for op in ops if op not in missing), repeat)
                                  for ops, repeat in self.blocks))


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


#: A launch that is the same for any number of tokens, or affine in it.
Launch = Op | AffineKernel


@frozen(eq=False, slots=False)
class SweptPart:
    """Prices a part of a step by how many tokens it goes over.

    `ops` are all launches, equal ones once; the `sweeps` are priced first, then each of the others.  `blocks` have
    their places in that order, or -1 - the number of one of `batch_launches`, and how often they run.
    """

    pricer: Pricer
    ops: Sequence[Launch]
    sweeps: Sequence[AffineSweep]
    others: Sequence[Launch]
    blocks: Sequence[tuple[tuple[int, ...], int]]
    batch_launches: tuple[BatchLaunch, ...]

    @classmethod
    def of(cls, affine: AffineBlocks | None, pricer: Pricer) -> "SweptPart | None":
        """None where launches are not affine, or ranks differ, or a kernel cannot be swept."""
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
        """Those over each number of *tokens*."""
        column = np.array(tokens, dtype=np.int64)
        others = [cost for op in self.others for cost in self._each(op, tokens)]
        kernels = KernelColumns.joined([*(self._priced(sweep, column) for sweep in self.sweeps),
                                        *([KernelColumns.of(others)] if others else [])])
        return [*parts_of(kernels, self.blocks, len(tokens), self._launches, self.batch_launches)]

    def _priced(self, sweep: AffineSweep, tokens: NDArray[np.int64]) -> KernelColumns:
        return self.pricer.sweep([self.ops[place].label for place in sweep.places.tolist()], sweep.at(tokens))

    def _each(self, op: Launch, tokens: Sequence[int]) -> list[KernelCost]:
        """A launch that is not swept: a collective, or one that is the same for any number of tokens."""
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
        """They are as many for any number of tokens."""
        order = [*(self.ops[place] for sweep in self.sweeps for place in sweep.places.tolist()), *self.others]
        kernels: list[Any] = [op.kernel if isinstance(op, Op) else op.at(1).kernel for op in order]
        return Launches.of([([(kernels[place], False) if place >= 0 else launched_of(self.batch_launches[-1 - place])
                              for place in places], repeat) for places, repeat in self.blocks])


def _plain(op: Launch) -> bool:
    """Whether columns can say what *op* launches, or it depends on the batch."""
    return op.mean is None if isinstance(op, Op) else issubclass(op.kind, (*COLUMNAR, Collective))


def _place(op: Launch, repeat: int, places: dict[Launch, int], runs: dict[tuple[str, BatchDependent], int]) -> int:
    """The place of *op*, which is new unless it has one; or of a launch that depends on the batch, whose *runs* are
    counted."""
    if isinstance(op, Op) and is_batch_dependent(op.kernel):
        launch = (op.label, op.kernel)
        runs[launch] = runs.get(launch, 0) + repeat
        return -1 - list(runs).index(launch)
    return places.setdefault(op, len(places))
