"""The prices of kernels that depend on the batch: attention, and the copies of a step's inputs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from attrs import define, field, frozen

from ksim.compute.graph import Op
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.cost.pricer import BatchLaunch, Pricer, of_host
from ksim.flow.batch import Batch, Batches, Contexts, Offsets
from ksim.flow.costs import Costs
from ksim.flow.steps import BatchKernels, Ints, KernelColumns, KernelCost, KernelKind, Shapes
from ksim.specs.host import Inputs

if TYPE_CHECKING:
    from ksim.compute.kernels.mla import LatentLayer

__all__ = ["BatchPricer", "Bound", "BoundLaunch", "bind", "inputs", "inputs_of", "missing", "price"]

#: Kernels of batches whose costs are kept.
MOST_KNOWN = 1024
#: The most steps that are priced ahead.  Each time all of them have come, twice as many are priced.
FURTHEST = 32
#: From so many steps on, a sweep is faster than kernel by kernel.
SWEPT = 8


@frozen(eq=False)
class BoundLaunch:
    """The kernels of a launch for each of many batches: `which` of the different ones, -1 where a batch has nothing for
    it.

    Those of a launch that is swept are not listed.
    """

    which: Ints
    kernels: Sequence[Kernel] = ()

    @classmethod
    def of(cls, layer: Any, batches: Batches) -> "BoundLaunch":
        """The kernels of *layer* for *batches*, numbered as they come."""
        if not hasattr(layer, "amounts"):
            known: dict[Kernel, int] = {}
            return cls(np.array([-1 if (kernel := layer.over(batch)) is None else known.setdefault(kernel, len(known))
                                 for batch in batches], dtype=np.intp), [*known])
        amounts = layer.amounts(batches)
        if hasattr(layer, "sweep"):
            return cls(np.where(amounts > 0, 0, -1))
        distinct, which = _numbered(amounts)
        kernels = [layer.of_rows(amount) for amount in distinct.tolist()]
        some = np.array([kernel is not None for kernel in kernels])
        return cls(np.where(some, some.cumsum() - 1, -1)[which], [kernel for kernel in kernels if kernel is not None])


def _numbered(values: Ints) -> tuple[Ints, Ints]:
    """The different *values* in the order in which they come, and for each value its number among them."""
    distinct, first, which = np.unique(values, return_index=True, return_inverse=True)
    order = first.argsort()
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return distinct[order], place[which]


Bound = Mapping[BatchLaunch, BoundLaunch]


@define(eq=False)
class BatchPricer:
    """Prices the kernels of one batch at a time, and keeps the prices: the next stage or rank asks for them again.

    While no sequence joins or leaves, the next batches are known, and their attention is priced along with this one's.
    """

    pricer: Pricer
    _known: dict[tuple[str, Kernel], KernelCost] = field(factory=dict, init=False, repr=False)
    _ahead: dict[BatchLaunch, tuple[Offsets, int]] = field(factory=dict, init=False, repr=False)

    def costs(self, kernels: Mapping[BatchLaunch, Kernel], batch: Batch) -> list[KernelCost]:
        """The cost of each of the *kernels* of *batch*."""
        new = {launch: kernel for launch, kernel in kernels.items() if (launch.label, kernel) not in self._known}
        if new:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
                new = dict(kernels)
            self._price(new, batch)
        return [self._known[launch.label, kernel] for launch, kernel in kernels.items()]

    def _price(self, new: Mapping[BatchLaunch, Kernel], batch: Batch) -> None:
        """Price the kernels that are *new* with *batch*; one question asks for all that are not swept."""
        asked: list[Any] = []
        for launch, kernel in new.items():
            later, layer = self._following(launch, batch), cast(Any, launch.layer)
            if len(later) >= SWEPT and hasattr(layer, "sweep"):
                self._sweep(launch.label, layer, [batch, *later])
            else:
                asked += [(launch.label, kernel), *((launch.label, layer.over(step)) for step in later)]
        self._known.update(zip(asked, self.pricer.kernels(asked), strict=True))

    def _following(self, launch: BatchLaunch, batch: Batch) -> list[Batch]:
        """The next steps for which to price *launch* along with *batch*, which must continue those priced before."""
        contexts, layer = batch.contexts, launch.layer
        together = hasattr(layer, "sweep") and hasattr(self.pricer.oracle, "estimates")
        if batch.chunks or batch.width > 1 or not together:
            return []
        offsets, steps = self._ahead.get(launch, (None, 1))
        steps = min(2 * steps, FURTHEST) if offsets is contexts.offsets else 1
        self._ahead[launch] = contexts.offsets, steps
        return [Batch(Contexts(contexts.offsets, contexts.shift + step), (), batch.samples, batch.tokens)
                for step in range(1, steps)]

    def _sweep(self, label: str, layer: "AttentionLayer | LatentLayer", batches: Sequence[Batch]) -> None:
        priced = self.pricer.sweep([label], layer.sweep(Batches.of(batches)))
        kernels: list[Any] = [layer.over(batch) for batch in batches]
        self._known.update(((label, kernel), priced[row]) for row, kernel in enumerate(kernels))


def bind(launches: Sequence[BatchLaunch], batches: Batches) -> Bound:
    """The kernels of *launches* for each of *batches*, without attention that every batch has."""
    return {launch: BoundLaunch.of(launch.layer, batches) for launch in launches
            if not isinstance(launch.layer, AttentionLayer)}


def missing(bound: Bound, batches: int) -> list[frozenset[Op]]:
    """For each of so many batches, the launches for which it has nothing."""
    if not bound:
        return [frozenset()] * batches
    lacks = np.array([kernels.which < 0 for kernels in bound.values()])
    patterns, which = np.unique(lacks, axis=1, return_inverse=True)
    lacking = [frozenset(Op(launch.label, launch.layer) for launch, lacks in zip(bound, pattern, strict=True) if lacks)
               for pattern in patterns.T.tolist()]
    return [lacking[number] for number in which.ravel().tolist()]


def price(launches: Mapping[BatchLaunch, Ints], bound: Bound, batches: Batches, pricer: Pricer) -> list[BatchKernels]:
    """Price the kernels of *launches* in those of *batches* that have them; one question asks for all *bound* ones."""
    having = {launch: rows[bound[launch].which[rows] >= 0] if launch in bound else rows
              for launch, rows in launches.items()}
    asked: dict[tuple[str, Kernel], int] = {}
    numbers: dict[BatchLaunch, Ints] = {}  # of the questions about each launch that is not swept
    for launch, rows in having.items():
        if not hasattr(launch.layer, "sweep"):
            distinct, which = _numbered(bound[launch].which[rows])
            questions = [(launch.label, bound[launch].kernels[number]) for number in distinct.tolist()]
            numbers[launch] = np.array([asked.setdefault(each, len(asked)) for each in questions], np.intp)[which]
    answers = KernelColumns.of(pricer.kernels(list(asked))) if asked else None
    priced = []
    for launch, rows in having.items():
        if hasattr(layer := launch.layer, "sweep"):
            some = batches if len(rows) == len(batches) else batches.of_rows(rows)
            priced += [BatchKernels(rows, launch.repeat, pricer.sweep([launch.label], layer.sweep(some)))
                       ] if len(rows) else []
        elif answers is not None and len(rows):
            priced.append(BatchKernels(rows, launch.repeat, answers.taken(numbers[launch])))
    return priced


def inputs_of(batch: Batch, costs: Inputs) -> KernelCost:
    """The cost of the small kernels that copy one step's inputs to the GPU."""
    return of_host("inputs", costs.copy + costs.copy_sequence * batch.sequences)


def inputs(batches: Batches, costs: Inputs) -> BatchKernels:
    """The costs of the small kernels that copy each step's inputs to the GPU."""
    steps = len(batches)
    seconds: Any = costs.copy + costs.copy_sequence * batches.sequences
    nothing, unknown, first = (np.broadcast_to(value, steps) for value in (0.0, np.nan, np.int32(0)))
    return BatchKernels(np.arange(steps), 1, KernelColumns(
        kinds=[KernelKind("inputs", "inputs", "launch", source="host")], kind=first,
        shapes=Shapes([""], first, np.zeros((0, steps))), costs=Costs.of(seconds=seconds), waves=nothing,
        idle=nothing, roofline_ratio=unknown, hidden=nothing))
