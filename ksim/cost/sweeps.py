"""Parts of steps for many numbers of tokens at once: their kernels are priced as sweeps."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from attrs import evolve, fields, frozen
from numpy.typing import NDArray

from ksim.compute.graph import Collective, Op
from ksim.compute.kernels.batched_gemm import BatchedGemm
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.compute.kernels.sweep import KernelSweep
from ksim.compute.layers import Layer, waits
from ksim.cost.affine import AffineBlocks, AffineOp, Line
from ksim.cost.launches import Launches
from ksim.cost.parts import BatchLaunch, Part, parts_of
from ksim.cost.pricer import Pricer
from ksim.flow.kernels import KernelColumns

__all__ = ["SweptPart"]

#: Kernels whose work is columns where their numbers are.
SWEPT = (Gemm, BatchedGemm, Pointwise)


@frozen(eq=False)
class SweptPart:
    """Prices a part of a step by how many tokens it goes over.

    `ops` are all launches, equal ones once.  `blocks` have their places in order, or -1 - the number of one of
    `batch_launches`, and how often they run.
    """

    pricer: Pricer
    ops: Sequence[Op | AffineOp]
    blocks: Sequence[tuple[tuple[int, ...], int]]
    batch_launches: tuple[BatchLaunch, ...]

    @classmethod
    def of(cls, affine: AffineBlocks | None, pricer: Pricer) -> "SweptPart | None":
        """None where launches are not affine, or ranks differ, or a kernel cannot be swept."""
        if affine is None or not all(_plain(op) for ops, _ in affine.blocks for op in ops):
            return None
        ops: dict[Op | AffineOp, int] = {}
        runs: dict[tuple[str, Layer], int] = {}
        blocks = [(tuple(_place(op, repeat, ops, runs) for op in of), repeat) for of, repeat in affine.blocks]
        swept = sorted(ops, key=lambda op: _alike(op, ops))  # kernels that are asked about together
        order = {ops[op]: place for place, op in enumerate(swept)}
        return cls(pricer, swept, [(tuple(order.get(place, place) for place in places), repeat)
                                   for places, repeat in blocks],
                   tuple(BatchLaunch(*layer, count) for layer, count in runs.items()))

    def parts(self, tokens: Sequence[int]) -> list[Part]:
        """Those over each number of *tokens*."""
        column = np.array(tokens, dtype=np.int64)
        kernels = KernelColumns.joined([self._priced(group, column) for group in self._groups])
        return [*parts_of(kernels, self.blocks, len(tokens), self._launches, self.batch_launches)]

    def _priced(self, group: "_Group", tokens: NDArray[np.int64]) -> KernelColumns:
        if group.lines is not None:
            return self.pricer.sweep(group.labels, group.at(tokens))
        if isinstance(op := group.ops[0], Op):  # the same for any number of tokens
            return KernelColumns.of(self._fixed[op.label, op.kernel] * len(tokens))
        messages: list[Any] = [(op.label, op.at(number).kernel) for number in tokens.tolist()]
        return KernelColumns.of(self.pricer.kernels(messages))

    @cached_property
    def _fixed(self) -> dict[Any, list[Any]]:
        ops = [op for op in self.ops if isinstance(op, Op)]
        launches: list[Any] = [(op.label, op.kernel) for op in ops]
        return {launch: [cost] for launch, cost in zip(launches, self.pricer.kernels(launches), strict=True)}

    @cached_property
    def _groups(self) -> list["_Group"]:
        groups: dict[Any, list[Op | AffineOp]] = {}
        for number, op in enumerate(self.ops):
            groups.setdefault(_apart(op) or number, []).append(op)
        return [_Group.of(ops) for ops in groups.values()]

    @cached_property
    def _launches(self) -> Launches:
        """They are as many for any number of tokens."""
        kernels: list[Any] = [op.kernel if isinstance(op, Op) else op.at(1).kernel for op in self.ops]
        return Launches.of([([(kernels[place], False) if place >= 0 else None for place in places], repeat)
                            for places, repeat in self.blocks])


@frozen(eq=False)
class _Group:
    """Ops that are asked about together: those whose kernels differ in numbers alone, or any other by itself.

    `lines` are slopes and offsets, columns of (ops, 1), by field.
    """

    ops: Sequence[Op | AffineOp]
    labels: Sequence[str]
    lines: dict[str, tuple[NDArray[Any], NDArray[Any]]] | None

    @classmethod
    def of(cls, ops: Sequence[Op | AffineOp]) -> "_Group":
        labels = [op.label for op in ops]
        affine = [op for op in ops if isinstance(op, AffineOp) and op.kind is not Collective]
        if not affine:
            return cls(ops, labels, None)
        names = [each.name for each in fields(affine[0].kind)]
        return cls(ops, labels, {name: _columns([op.values[place] for op in affine]) for place, name in enumerate(names)
                                 if isinstance(affine[0].values[place], Line | int | float)})

    def at(self, tokens: NDArray[np.int64]) -> KernelSweep:
        """The kernels over each number of *tokens*."""
        assert self.lines is not None, "only affine ops are swept"
        kernels: list[Any] = [op.at(1).kernel for op in self.ops]  # type: ignore[union-attr]
        numbers = {name: (slope * tokens + offset).ravel() for name, (slope, offset) in self.lines.items()}
        families = [kernel.family for kernel in kernels]
        return KernelSweep(evolve(kernels[0], **numbers), families, np.repeat(np.arange(len(kernels)), len(tokens)))


def _plain(op: Op | AffineOp) -> bool:
    """Whether columns can say what *op* launches, or it depends on the batch."""
    return op.mean is None if isinstance(op, Op) else issubclass(op.kind, (*SWEPT, Collective))


def _place(op: Op | AffineOp, repeat: int, ops: dict[Op | AffineOp, int], runs: dict[tuple[str, Layer], int]) -> int:
    """The place of *op* among *ops*, which it joins if it is new, or among launches that depend on the batch, whose
    *runs* are counted."""
    if isinstance(op, Op) and waits(op.kernel):
        launch = (op.label, op.kernel)
        runs[launch] = runs.get(launch, 0) + repeat
        return -1 - list(runs).index(launch)
    return ops.setdefault(op, len(ops))


def _apart(op: Op | AffineOp) -> tuple[Any, ...]:
    """What kernels have in common that are swept together; nothing of what is not swept."""
    if isinstance(op, Op) or op.kind is Collective:
        return ()
    return (op.kind, *(value for each, value in zip(fields(op.kind), op.values, strict=True)
                       if each.name != "family" and not isinstance(value, Line | int | float)))


def _alike(op: Op | AffineOp, ops: dict[Op | AffineOp, int]) -> int:
    """The place of the first of *ops* that is swept together with this one."""
    return next(place for other, place in ops.items() if other == op or (_apart(op) and _apart(op) == _apart(other)))


def _columns(values: Iterable[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Slopes and offsets of *values*, whole where all are."""
    lines = [value if isinstance(value, Line) else Line(0, value) for value in values]
    return np.array([[line.slope] for line in lines]), np.array([[line.offset] for line in lines])
