"""Runs, seconds and joules of each distinct kernel, counted without unfolding a single step."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from ksim.flow.costs import JOULES
from ksim.flow.steps import KernelColumns, KernelKind, PricedBlock
from ksim.results.steps import Bools, Floats, Ints, Steps, codes, sums

#: What kernels are grouped by.
Key = Callable[[KernelKind], Hashable]


@frozen(eq=False)
class KernelUsage:
    """The distinct kernels of a run, and how often each runs in each stage step.

    Stage steps of one plan share their blocks (the same object).  So kernels of blocks stand here once for each plan,
    and `place` is the plan; they come first, and `shared` counts them.  Kernels that depend on the batch stand here
    once for each stage step, and `place` is its row.
    """

    steps: Steps = field(repr=False)
    kernels: KernelColumns
    repeats: Ints
    place: Ints
    shared: int
    plan_of: Ints = field(repr=False)

    @classmethod
    def of(cls, steps: Steps) -> "KernelUsage":
        plan_of, plans = _plans(steps.stage_steps.blocks)
        kernels, places, repeats = _shared(plans)
        batch_rows, batch_repeats, batch_kernels = steps.stage_steps.batch_kernels()
        return cls(
            steps,
            KernelColumns.joined([kernels, *batch_kernels]),
            np.concatenate([repeats, batch_repeats]),
            np.concatenate([places, batch_rows]),
            len(kernels),
            plan_of,
        )

    @property
    def _plan_count(self) -> int:
        return int(self.plan_of.max(initial=-1)) + 1

    def counts(self, weights: Floats | Ints) -> Floats:
        """The runs of each kernel; a stage step counts as often as its weight says."""
        plans, rows = self.place[:self.shared], self.place[self.shared:]
        return np.asarray(self.repeats * np.concatenate([sums(self.plan_of, weights, self._plan_count)[plans],
                                                         weights[rows]]))

    def spent(self, weights: Floats | Ints, name: str = "seconds") -> Floats:
        """The seconds of each kernel at the clock of its stage steps, which count as often as their weights say.

        *name* may be `low` or `high`, for the ends of its interval.
        """
        slowed = self.counts(weights * (self.steps.stage_steps.scaling.time - 1.0)) * self.compute_bound
        return np.asarray((self.counts(weights) + slowed) * getattr(self.kernels.costs, name))

    def joules(self, weights: Floats | Ints) -> Floats:
        """The joules of each kernel at the clock of its stage steps, which count as often as their weights say."""
        return np.asarray(sum(self.counts(weights * factor) * joules for factor, joules in self._joules()))

    def seconds_by(self, key: Key) -> tuple[list[Any], Floats]:
        """Split each step's seconds by what *key* makes of its kernels: the keys, and (steps, keys) seconds.

        They are the seconds of one rank of each pipeline stage, added up over the stages.
        """
        groups, keys = self.groups(key)
        costs, slowed = self.kernels.costs, self.steps.stage_steps.scaling.time - 1.0
        seconds = self._by_stage_step(groups, costs.seconds, len(keys))
        if slowed.any():
            seconds += slowed[:, None] * self._by_stage_step(groups, costs.compute_bound, len(keys))
        return keys, self._by_step(seconds)

    def joules_by(self, key: Key) -> tuple[list[Any], Floats]:
        """Split each step's dynamic joules, those of all its GPUs, by what *key* makes of its kernels."""
        groups, keys = self.groups(key)
        parts = (factor[:, None] * self._by_stage_step(groups, joules, len(keys)) for factor, joules in self._joules())
        return keys, self._by_step(np.asarray(sum(parts)) * self.steps.stage_ranks[:, None])

    def _joules(self) -> list[tuple[Floats, Floats]]:
        """Factors of stage steps and joules of kernels, whose products add up to the joules at each clock."""
        costs, scaling = self.kernels.costs, self.steps.stage_steps.scaling
        changes = zip(scaling.joule_factors, JOULES, strict=True)
        return [(np.ones(len(scaling.time)), costs.joules),
                *((factor, getattr(costs, name)) for factor, name in changes if factor.any())]

    def _by_stage_step(self, groups: Ints, amounts: Floats, width: int) -> Floats:
        """The sum of *amounts* over the kernels of each stage step, in *width* groups: (stage steps, width)."""
        totals, plans, shared = amounts * self.repeats, self._plan_count, self.shared
        cells = self.place[:shared] * width + groups[:shared]
        table = sums(cells, totals[:shared], plans * width).reshape(plans, width)[self.plan_of]
        of_batches, rows, rest = groups[shared:], self.place[shared:], totals[shared:]
        for group in np.flatnonzero(np.bincount(of_batches, minlength=width)).tolist():  # they are of few groups
            which = of_batches == group
            table[:, group] += sums(rows[which], rest[which], len(table))
        return table

    def _by_step(self, table: Floats) -> Floats:
        """Add up the stages of each step: (steps, width) of (stage steps, width)."""
        steps, width = self.steps, table.shape[1]
        if (steps.stages == 1).all():
            return table
        cells = (steps.stage_step_rows[:, None] * width + np.arange(width)).ravel()
        return sums(cells, table.ravel(), len(steps) * width).reshape(len(steps), width)

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
        """*value* of the kind of each kernel."""
        return np.array([value(kind) for kind in self.kernels.kinds])[self.kernels.kind]

    def groups(self, key: Key) -> tuple[Ints, list[Any]]:
        """Number the kernels by what *key* makes of their kinds: the number of each kernel, and the distinct keys."""
        numbers, keys = codes(map(key, self.kernels.kinds))
        return numbers[self.kernels.kind], keys


Plan = tuple[PricedBlock, ...]


def _plans(blocks: Sequence[Plan]) -> tuple[Ints, list[Plan]]:
    """Number the blocks of stage steps by identity: to hash or compare them would walk every kernel."""
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
