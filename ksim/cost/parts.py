"""Parts of a step that do not depend on the batch: what comes before its samples, and its head."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.compute.graph import BatchDependent, Collective
from ksim.compute.kernels import Kernel
from ksim.cost.launches import Launched, Launches
from ksim.flow.costs import NAMES, Costs
from ksim.flow.kernels import KernelColumns, KernelCost
from ksim.flow.steps import PricedBlock

__all__ = ["BatchLaunch", "Part", "PricedLaunch", "parts_of", "priced_part"]

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
        ([None if isinstance(launch, int) else (launch.kernel, bool(launch.cost.hidden)) for launch in launches],
         repeat) for launches, repeat in blocks]
    return next(parts_of(kernels, places, 1, Launches.of(launched), batch_launches))


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
