"""Plans: what all steps of so many tokens and samples share, made of a part before the samples and a head."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.compute.graph import BatchDependent, Collective, Op, is_of_adapters
from ksim.compute.kernels import Kernel
from ksim.cost.graphs import Launched, Launches, Launching
from ksim.cost.pricer import of_host
from ksim.flow.costs import NAMES, Costs, StepSummary
from ksim.flow.kernels import KernelColumns, KernelCost
from ksim.flow.steps import PricedBlock, StepCost

__all__ = ["BatchLaunch", "Part", "Plan", "PricedLaunch", "Shape", "launched_of", "parts_of", "priced_part"]

Floats = NDArray[np.float64]


class PricedLaunch(NamedTuple):
    """A kernel or a collective, and what it costs."""

    kernel: Kernel | Collective
    cost: KernelCost


class BatchLaunch(NamedTuple):
    """A launch that depends on the batch, such as attention, and how often it runs in a step."""

    label: str
    layer: BatchDependent
    repeat: int


@frozen(eq=False)
class Part:
    """What a part of a step costs without the launches that depend on the batch.

    `reach` is how far the interval of each family of kernels reaches down and up.
    """

    blocks: tuple[PricedBlock, ...]
    batch_launches: tuple[BatchLaunch, ...]
    costs: Costs
    reach: Mapping[str, Floats]
    launches: Launches


def priced_part(blocks: Sequence[tuple[Sequence[PricedLaunch | int], int]],
                batch_launches: tuple[BatchLaunch, ...]) -> Part:
    """The part of these *blocks*, each of which runs so often; an int is the number of a batch launch."""
    kernels = KernelColumns.of([launch.cost for launches, _ in blocks for launch in launches
                                if not isinstance(launch, int)])
    rows = iter(range(len(kernels)))
    places = [(tuple(-1 - launch if isinstance(launch, int) else next(rows) for launch in launches), repeat)
              for launches, repeat in blocks]
    launched: list[tuple[list[Launched], int]] = [
        ([launched_of(batch_launches[launch]) if isinstance(launch, int) else
          (launch.kernel, bool(launch.cost.hidden)) for launch in launches], repeat) for launches, repeat in blocks]
    return next(parts_of(kernels, places, 1, Launches.of(launched), batch_launches))


def launched_of(launch: BatchLaunch) -> Launched:
    """What counts as launched of one that depends on the batch: attention stands between graphs, adapters in them."""
    layer: Any = launch.layer
    return (layer, False) if is_of_adapters(layer) else None


def parts_of(kernels: KernelColumns, blocks: Sequence[tuple[tuple[int, ...], int]], sizes: int, launches: Launches,
             batch_launches: tuple[BatchLaunch, ...]) -> Iterator[Part]:
    """The part of each of so many *sizes*, whose kernels lie next to each other.

    *blocks* have places of kernels, counted without the sizes, or of batch launches, as in `PricedBlock`.
    """
    runs = [(place, repeat) for places, repeat in blocks for place in places if place >= 0]
    rows, repeats = (np.array([run[column] for run in runs], dtype=np.intp) for column in range(2))
    table = kernels.costs.table.reshape(len(NAMES), len(kernels) // sizes, sizes)[:, rows] * repeats[:, None]
    costs, members = table.sum(axis=1), _members(kernels, rows * sizes)
    reach = {family: Costs(table[:, which].sum(axis=1)).reach for family, which in members.items()}
    for size in range(sizes):
        yield Part(tuple(PricedBlock(kernels, tuple(place * sizes + size if place >= 0 else place for place in places),
                                     repeat) for places, repeat in blocks),
                   batch_launches, Costs(costs[:, size].copy()), {name: far[:, size] for name, far in reach.items()},
                   launches)


def _members(kernels: KernelColumns, rows: Any) -> dict[str, list[int]]:
    """Which of the kernels at *rows* are of each family."""
    members: dict[str, list[int]] = {}
    for number, kind in enumerate(kernels.kind[rows].tolist()):
        members.setdefault(kernels.kinds[kind].family, []).append(number)
    return members


#: Tokens, rows of logits, how they are launched, the tokens of all data ranks, and the launches that the batch has
#: nothing for.
Shape = tuple[int, int, Launching, int | None, frozenset[Op]]


@frozen(eq=False, slots=False)
class Plan:
    """Steps of one `shape`: the blocks of kernels that they share, and the launches that depend on the batch.

    `costs` are of the blocks.  The batch's kernels follow in the order of `batch_launches`, and the kernels that copy
    its inputs to the GPU are the last of them.
    """

    shape: Shape
    blocks: tuple[PricedBlock, ...]
    batch_launches: tuple[BatchLaunch, ...]
    costs: Costs
    launch: str
    launch_seconds: float

    @classmethod
    def of(cls, shape: Shape, body: Part, head: Part, gaps: float, launch_seconds: float) -> "Plan":
        """The step of a *body* and a *head*, with so many seconds of *gaps* between its kernels."""
        reach = dict(body.reach)
        for family, far in head.reach.items():
            reach[family] = reach[family] + far if family in reach else far
        costs = (body.costs + head.costs + Costs.of(seconds=gaps)).with_reach(reach.values())
        inputs = PricedBlock(_NOTHING, (-1 - len(body.batch_launches),))
        blocks = (inputs, *body.blocks, *head.blocks, _gaps(gaps))
        return cls(shape, blocks, body.batch_launches, costs, shape[2].value, launch_seconds)

    def step(self, kernels: tuple[KernelCost, ...]) -> StepCost:
        """The step with these *kernels* of its batch, the last of which copy its inputs.

        Attention is one family of kernels: it errs alike in all layers.
        """
        costs, reach = self.costs + kernels[-1].costs, np.zeros_like(self.costs.reach)
        for launch, kernel in zip(self.batch_launches, kernels, strict=False):
            runs = launch.repeat * kernel.costs
            costs, reach = costs + runs, reach + runs.reach
        return StepCost(self.blocks, kernels, costs.with_reach([self.costs.reach, reach]), self.launch,
                        self.launch_seconds)

    @cached_property
    def summary(self) -> StepSummary:
        """What the clock has to know of the blocks."""
        return StepSummary.of(self.costs, self.launch_seconds)


_NOTHING = PricedBlock.of(()).kernels


@lru_cache(maxsize=4096)
def _gaps(seconds: float) -> PricedBlock:
    """The GPU's waits between kernels."""
    return PricedBlock.of([of_host("gaps", seconds)])
