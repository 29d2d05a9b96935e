"""Which kernels ran how often, counted without unfolding a single step."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from ksim.flow.costs import JOULES
from ksim.flow.kernels import KernelColumns, KernelKind
from ksim.flow.steps import PricedBlock
from ksim.results.arrays import Bools, Floats, Ints, sums
from ksim.results.lane_columns import LaneColumns
from ksim.results.steps import Steps


@frozen(eq=False)
class KernelUsage:
    """The distinct kernels of a run, and in which lanes each runs how often.

    A lane is one step on one pipeline stage.  Lanes of one plan share their blocks (the same object): the kernels of
    blocks stand here once for each plan, with `place` the plan.  Kernels that depend on the batch stand here once for
    each lane, with `place` the lane.
    """

    kernels: KernelColumns
    repeats: Ints
    place: Ints
    shared: Bools = field(repr=False)
    plan_of: Ints = field(repr=False)
    lanes: LaneColumns = field(repr=False)

    @classmethod
    def of(cls, steps: Steps) -> "KernelUsage":
        lanes = steps.lanes
        plan_of, plans = _plans(lanes.blocks)
        kernels, places, repeats = _shared(plans)
        batch_lanes, batch_repeats, batch_kernels = lanes.batch_kernels()
        return cls(
            KernelColumns.joined([kernels, *batch_kernels]),
            np.concatenate([repeats, batch_repeats]),
            np.concatenate([places, batch_lanes]),
            np.arange(len(kernels) + len(batch_lanes)) < len(kernels),
            plan_of,
            lanes,
        )

    def counts(self, weights: Floats | Ints) -> Floats:
        """How often each kernel ran, every lane counted as often as its weight says."""
        plans = sums(self.plan_of, weights, int(self.plan_of.max(initial=-1)) + 1)
        own = np.count_nonzero(self.shared)  # those of blocks stand first
        return np.asarray(self.repeats * np.concatenate([plans[self.place[:own]], weights[self.place[own:]]]))

    def by_lane(self, groups: Ints, amounts: Floats, width: int) -> Floats:
        """The sum of *amounts* over the kernels of each lane, apart for each of *width* groups: (lanes, width)."""
        own = np.count_nonzero(self.shared)  # those of blocks stand first
        totals, plans = amounts * self.repeats, int(self.plan_of.max(initial=-1)) + 1
        cells = self.place[:own] * width + groups[:own]
        by_lane = sums(cells, totals[:own], plans * width).reshape(plans, width)[self.plan_of]
        of_batches, lanes, rest = groups[own:], self.place[own:], totals[own:]
        for group in np.flatnonzero(np.bincount(of_batches, minlength=width)).tolist():  # they are of few groups
            which = of_batches == group
            by_lane[:, group] += sums(lanes[which], rest[which], len(by_lane))
        return by_lane

    def spent(self, weights: Floats | Ints, name: str = "seconds") -> Floats:
        """How long each kernel ran at the clock of its lanes, every lane counted as often as its weight says.

        *name* may be `low` or `high`, for the ends of its interval.
        """
        slowed = self.counts(weights * (self.lanes.scaling.time - 1.0)) * self.compute_bound
        return np.asarray((self.counts(weights) + slowed) * getattr(self.kernels.costs, name))

    def joules(self, weights: Floats | Ints) -> Floats:
        """The joules of each kernel at the clock of its lanes, every lane counted as often as its weight says."""
        joules: Floats = self.counts(weights) * self.kernels.costs.joules
        for lanes, kernels in self._changes():
            joules += self.counts(weights * lanes) * kernels
        return joules

    def seconds_by_lane(self, groups: Ints, width: int) -> Floats:
        """How long the kernels of each lane ran, apart for each of *width* groups: (lanes, width)."""
        costs, slowed = self.kernels.costs, self.lanes.scaling.time - 1.0
        seconds = self.by_lane(groups, costs.seconds, width)
        if slowed.any():
            seconds += slowed[:, None] * self.by_lane(groups, costs.compute_bound, width)
        return seconds

    def joules_by_lane(self, groups: Ints, width: int) -> Floats:
        """What the kernels of each lane took of one rank, apart for each of *width* groups: (lanes, width)."""
        joules = self.by_lane(groups, self.kernels.costs.joules, width)
        for lanes, kernels in self._changes():
            joules += lanes[:, None] * self.by_lane(groups, kernels, width)
        return joules

    def _changes(self) -> list[tuple[Floats, Floats]]:
        """How joules differ from those at the boost clock: factors of lanes and amounts of kernels, to be multiplied
        and added up."""
        factors = self.lanes.scaling.joule_factors
        return [(factor, getattr(self.kernels.costs, name)) for factor, name in zip(factors, JOULES, strict=True)
                if factor.any()]

    @property
    def compute_bound(self) -> Bools:
        """Whether compute limits each kernel."""
        bound: Bools = self.of_kinds(lambda kind: kind.bound) == "compute"
        return bound

    @property
    def lasts(self) -> Floats:
        """Seconds of each kernel from its start to its end."""
        return np.asarray(self.kernels.costs.seconds + self.kernels.hidden)

    def of_kinds(self, value: Callable[[KernelKind], Any]) -> Any:
        """What *value* makes of the kind of each kernel."""
        return np.array([value(kind) for kind in self.kernels.kinds])[self.kernels.kind]

    def groups(self, key: Callable[[KernelKind], Hashable]) -> tuple[Ints, list[Any]]:
        """Number the kernels by what *key* makes of their kinds: (the number of each kernel, the distinct keys)."""
        keys: dict[Hashable, int] = {}
        numbers = [keys.setdefault(key(kind), len(keys)) for kind in self.kernels.kinds]
        return np.array(numbers, dtype=np.int64)[self.kernels.kind], list(keys)


Plan = tuple[PricedBlock, ...]


def _plans(blocks: Sequence[Plan]) -> tuple[Ints, list[Plan]]:
    """Number the blocks of the lanes by identity: to hash or compare them would walk every kernel."""
    ids = np.fromiter(map(id, blocks), np.int64, len(blocks))
    _, first, numbers = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)  # that of their appearance
    return np.argsort(order)[numbers], [blocks[row] for row in first[order].tolist()]


def _shared(plans: Sequence[Plan]) -> tuple[KernelColumns, Ints, Ints]:
    """The kernels that belong to the blocks of *plans*: what they cost, the plan of each, and how often it runs."""
    tables = {id(block.kernels): block.kernels for plan in plans for block in plan}
    begins = dict(zip(tables, np.cumsum([0, *map(len, tables.values())]).tolist(), strict=False))
    runs = np.array([(begins[id(block.kernels)] + place, number, block.repeat) for number, plan in enumerate(plans)
                     for block in plan for place in block.places if place >= 0], dtype=np.int64).reshape(-1, 3)
    kernels = KernelColumns.joined([*tables.values()]).taken(runs[:, 0])
    return kernels, runs[:, 1], runs[:, 2]
