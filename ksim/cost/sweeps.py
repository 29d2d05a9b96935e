"""Parts of steps for many numbers of tokens at once: their kernels are priced as sweeps."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.compute.graph import BatchDependent, Collective, Op, is_batch_dependent
from ksim.cost.affine import COLUMNAR, AffineBlocks, AffineKernel, AffineSweep, affine_sweeps
from ksim.cost.launches import Launches
from ksim.cost.parts import BatchLaunch, Part, parts_of
from ksim.cost.pricer import Pricer
from ksim.flow.kernels import KernelColumns, KernelCost

__all__ = ["SweptPart"]

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
        return Launches.of([([(kernels[place], False) if place >= 0 else None for place in places], repeat)
                            for places, repeat in self.blocks])


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
