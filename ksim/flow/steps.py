"""What steps cost one rank, kernel by kernel: durations, not dates."""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ksim.flow.costs import AT_BOOST, ClockScaling, Costed, Costs, Scalable
from ksim.flow.kernels import KernelColumns, KernelCost

__all__ = ["AT_BOOST", "BatchKernels", "ClockScaling", "KernelCost", "PricedBlock", "Scalable", "StepColumns",
           "StepCost", "Ints", "Blocks"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@frozen(eq=False, slots=False)
class PricedBlock:
    """Launches that run one after another, `repeat` times over, such as those of equal layers.

    Each of `places` is a row of `kernels`.  Of a kernel that depends on the batch, it is -1 - its number among those
    of the step.
    """

    kernels: KernelColumns
    places: tuple[int, ...]
    repeat: int = 1

    @classmethod
    def of(cls, launches: Sequence[KernelCost | int], repeat: int = 1) -> "PricedBlock":
        """A block of kernels, and of the numbers of kernels that depend on the batch."""
        kernels = [launch for launch in launches if not isinstance(launch, int)]
        rows = iter(range(len(kernels)))
        return cls(KernelColumns.of(kernels), tuple(-1 - launch if isinstance(launch, int) else next(rows)
                                                    for launch in launches), repeat)

    @cached_property
    def launches(self) -> tuple[KernelCost | int, ...]:
        """What `of` makes a block of."""
        return tuple(self.kernels[place] if place >= 0 else -1 - place for place in self.places)


Blocks = tuple[PricedBlock, ...]


@frozen
class StepCost(Costed):
    """What one step costs one rank of a pipeline stage.

    `blocks` are shared by all steps of so many tokens, to which most kernels are alike.  Attention depends on whose
    tokens they are, so each step has `batch_kernels` of its own.  `costs` are those of all kernels.  `launch` is how
    the host launches them, and `launch_seconds` the CPU time that takes.
    """

    blocks: Blocks
    batch_kernels: tuple[KernelCost, ...]
    costs: Costs
    launch: str = ""
    launch_seconds: float = 0.0

    @classmethod
    def of(cls, blocks: Sequence[PricedBlock], batch_kernels: Sequence[KernelCost] = ()) -> "StepCost":
        """The step with these kernels, whose costs are added up."""
        step = cls(tuple(blocks), tuple(batch_kernels), Costs.of())
        families: dict[str, Costs] = {}
        for kernel, runs in step.counted():
            families[kernel.family] = families.get(kernel.family, Costs.of()) + runs * kernel.costs
        total = sum(families.values(), Costs.of())
        return evolve(step, costs=total.with_reach(costs.reach for costs in families.values()) if families else total)

    def followed_by(self, kernel: KernelCost) -> "StepCost":
        """The same, and *kernel* at its end, which takes exactly as long as it says."""
        blocks = _with_one_more(self.blocks, len(self.batch_kernels))
        costs = self.costs + kernel.costs.replaced(below=0.0, above=0.0)
        return StepCost(blocks, (*self.batch_kernels, kernel), costs, self.launch, self.launch_seconds)

    def runs(self) -> list[int]:
        """How often each of the batch's kernels runs."""
        return runs_of(self.blocks, len(self.batch_kernels))

    def counted(self) -> Iterator[tuple[KernelCost, int]]:
        """Each distinct kernel with how often it runs."""
        for block in self.blocks:
            for launch in block.launches:
                yield (self.batch_kernels[launch] if isinstance(launch, int) else launch), block.repeat

    def __iter__(self) -> Iterator[KernelCost]:
        """All kernels in order, one by one."""
        for block in self.blocks:
            kernels = [self.batch_kernels[launch] if isinstance(launch, int) else launch for launch in block.launches]
            for _ in range(block.repeat):
                yield from kernels


def runs_of(blocks: Sequence[PricedBlock], kernels: int) -> list[int]:
    """How often each of so many *kernels* of a batch runs in *blocks*."""
    runs = [0] * kernels
    for block in blocks:
        for place in block.places:
            if place < 0:
                runs[-1 - place] += block.repeat
    return runs


@lru_cache(maxsize=1024)
def _with_one_more(blocks: Blocks, number: int) -> Blocks:
    """*blocks*, and the batch's kernel of this *number* at their end: the same object where they are."""
    return (*blocks, PricedBlock(KernelColumns.of(()), (-1 - number,)))


@frozen(eq=False)
class BatchKernels:
    """Kernels that depend on the batch, one for each of the steps `rows`, which ascend; each runs `repeat` times."""

    rows: Ints
    repeat: int
    kernels: KernelColumns

    def at(self, step: int) -> KernelCost | None:
        """The kernel of one step, where it has one."""
        place = int(np.searchsorted(self.rows, step))
        return self.kernels[place] if place < len(self.rows) and self.rows[place] == step else None


@frozen(eq=False)
class StepColumns:
    """What steps cost one rank of a pipeline stage: `StepCost` for many, with columns of (steps,).

    `blocks` and `launch` have an entry for each step; those of equal steps are the same object.  All kernels of the
    steps are those of their blocks, as often as these repeat, and `batch_kernels`, in the order of their numbers.
    """

    blocks: Sequence[Blocks]
    batch_kernels: Sequence[BatchKernels]
    costs: Costs
    launch: Sequence[str]
    launch_seconds: Floats

    @classmethod
    def of(cls, steps: Sequence[StepCost]) -> "StepColumns":
        """The columns of *steps*."""
        return cls([step.blocks for step in steps], _batch_kernels(steps),
                   Costs.stacked(step.costs for step in steps), [step.launch for step in steps],
                   np.array([step.launch_seconds for step in steps]))

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, row: int) -> StepCost:
        """What one step costs."""
        kernels = [kernel for column in self.batch_kernels if (kernel := column.at(row)) is not None]
        return StepCost(self.blocks[row], tuple(kernels), self.costs[row], self.launch[row],
                        float(self.launch_seconds[row]))


def _batch_kernels(steps: Sequence[StepCost]) -> list[BatchKernels]:
    """Those of *steps* as columns: kernels with equal numbers, labels and repeats together."""
    rows: dict[tuple[Any, ...], list[int]] = {}
    for row, step in enumerate(steps):
        for number, (kernel, runs) in enumerate(zip(step.batch_kernels, step.runs(), strict=True)):
            rows.setdefault((number, kernel.label, kernel.family, runs), []).append(row)
    return [BatchKernels(np.array(of, dtype=np.intp), key[-1],
                         KernelColumns.of([steps[row].batch_kernels[key[0]] for row in of]))
            for key, of in sorted(rows.items(), key=lambda item: item[0])]
