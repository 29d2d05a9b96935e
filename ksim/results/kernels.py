"""How often each distinct kernel of a run ran, and the table of kernels beside waiting for the CPU and idle time."""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from math import isnan, nan
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen

from ksim.flow.costs import JOULES
from ksim.flow.steps import BOUNDS, KernelColumns, KernelKind, PricedBlock
from ksim.results.arrow import records
from ksim.results.history import History, allocated_gpu_seconds
from ksim.results.steps import Bools, Floats, Ints, Steps, codes, floats, product, ratio, shares, sums

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

    def lasts(self, weights: Floats | Ints) -> Floats:
        """The seconds of each kernel from its start to its end, as `spent`, with what is hidden behind others."""
        return self.spent(weights) + self.counts(weights) * self.kernels.hidden

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
    runs = np.array([(begins[id(block.kernels)] + index, number, block.repeat) for number, plan in enumerate(plans)
                     for block in plan for index in block.places if index >= 0], dtype=np.int64).reshape(-1, 3)
    kernels = KernelColumns.joined([*tables.values()]).taken(runs[:, 0])
    return kernels, runs[:, 1], runs[:, 2]


HOST, IDLE = "host", "idle"


def kernel_table(history: History, usage: KernelUsage) -> pa.Table:
    """One row per kernel, by label and family, and the rows `host` and `idle`; most seconds first.

    Seconds and launches are those of one rank of each pipeline stage, so that all rows add up to the run's duration
    times the stages.  FLOP, bytes and joules, dynamic and static, are those of all GPUs.  docs/glossary.md describes
    every column.
    """
    columns = kernel_columns(usage, np.ones(len(history.steps), dtype=bool))
    busy = float(np.sum(columns["seconds"]))
    columns["busy_share"] = shares(columns["seconds"], busy)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*(list(c) for c in columns.values()), strict=True)]
    rows += _waiting(history, busy, float(np.sum(columns["static_joules"])))
    total = sum(row["seconds"] for row in rows)
    for row in rows:
        row["run_share"] = row["seconds"] / total if total else None
    rows.sort(key=lambda row: (-row["seconds"], row["label"], row["family"]))
    for row in rows:  # what nobody knows is null in a file
        row.update((name, None) for name, value in list(row.items()) if isinstance(value, float) and isnan(value))
    return records(rows, _SCHEMA)


@frozen
class FamilyShare:
    """A kernel family, or waiting, with its seconds' share of the run, its joules, and their share of all energy."""

    family: str
    time: float
    joules: float
    static: float
    energy: float | None


def families(kernels: pa.Table) -> list[FamilyShare]:
    """The rows of `kernel_table` by family, most time first: dynamic and static joules add up to the run's energy."""
    columns = [kernels[name].to_pylist() for name in ("family", "run_share", "joules", "static_joules")]
    found: dict[str, list[float]] = {}
    for family, *amounts in zip(*columns, strict=True):  # pyarrow's own group_by would load pandas
        known = found.setdefault(family, [0.0, 0.0, 0.0])
        found[family] = [one + (other or 0.0) for one, other in zip(known, amounts, strict=True)]
    total = sum(joules + static for _, joules, static in found.values())
    return [FamilyShare(family, time, joules, static, ratio(joules + static, total)) for family, (time, joules, static)
            in sorted(found.items(), key=lambda row: (-row[1][0], row[0]))]


def kernel_columns(usage: KernelUsage, which: Bools) -> dict[str, Any]:
    """The columns of `kernel_table`, for kernels of the steps in *which*."""
    groups, keys = usage.groups(lambda kind: (kind.label, kind.family))
    tally = _Tally(usage, groups, len(keys), which)
    return {
        "label": [label for label, _ in keys],
        "family": [family for _, family in keys],
        **tally.time(),
        **tally.waves(),
        **tally.work(),
        **tally.estimates(),
        **tally.heaviest(),
        "source": tally.sources(),
    }


def work_columns(usage: KernelUsage, which: Bools) -> dict[str, Any]:
    """The columns about time, bound and work only, for kernels of the steps in *which*."""
    groups, keys = usage.groups(lambda kind: (kind.label, kind.family))
    tally = _Tally(usage, groups, len(keys), which)
    return {"label": [label for label, _ in keys], **tally.time(), **tally.work()}


@define(eq=False, slots=False)
class _Tally:
    """Sums over the kernels of each of `count` groups, in the steps in `which`."""

    usage: KernelUsage
    groups: Ints
    count: int
    which: Bools

    def counts(self, weights: Floats | Ints) -> Floats:
        """The runs of each kernel in `which`; a stage step counts as often as its weight says."""
        return self.usage.counts(self.which[self.usage.steps.stage_step_rows] * weights)

    def total(self, amounts: Floats) -> Floats:
        return sums(self.groups, amounts, self.count)

    @cached_property
    def runs(self) -> Floats:
        """The runs of each kernel on one rank."""
        return self.counts(np.ones(len(self.usage.steps.stage_steps)))

    @cached_property
    def seconds(self) -> Floats:
        """The seconds of each kernel on one rank."""
        return self._spent("seconds")

    def _spent(self, name: str) -> Floats:
        return self.usage.spent(self.which[self.usage.steps.stage_step_rows].astype(float), name)

    def time(self) -> dict[str, Floats]:
        """Launches and seconds on one rank, and the share of the seconds under each bound."""
        seconds, bounds = self.seconds, self.usage.of_kinds(lambda kind: kind.bound)
        columns = {"launches": self.total(self.runs), "seconds": self.total(seconds),
                   "hidden_seconds": self.total(self.runs * self.usage.kernels.hidden)}
        for bound in BOUNDS:
            columns[f"{bound}_share"] = shares(self.total(seconds * (bounds == bound)), columns["seconds"])
        return columns

    def waves(self) -> dict[str, Floats]:
        """Waves and idle SMs: means over launches."""
        launches, kernels = self.total(self.runs), self.usage.kernels
        return {
            "mean_waves": shares(self.total(self.runs * kernels.waves), launches),
            "mean_idle_sms": shares(self.total(self.runs * kernels.idle), launches),
        }

    def work(self) -> dict[str, Floats]:
        """FLOP, bytes, joules and seconds of all GPUs, and the shares of their peaks."""
        everywhere, kernels = self.counts(self.usage.steps.stage_ranks), self.usage.kernels
        columns = {name: self.total(everywhere * getattr(kernels.costs, name)) for name in ("flops", "bytes")}
        ranks = self.which[self.usage.steps.stage_step_rows] * self.usage.steps.stage_ranks
        columns["joules"] = self.total(self.usage.joules(ranks))
        columns["gpu_seconds"] = self.total(self.usage.lasts(ranks))
        watts = self.usage.steps.per_engine("static_watts")[self.usage.steps.stage_step_rows]
        columns["static_joules"] = self.total(self.usage.spent(ranks * watts))
        columns["flops_share"] = shares(columns["flops"], self._possible("peak_flops", ranks))
        columns["bandwidth_share"] = shares(columns["bytes"], self._possible("peak_bandwidth", ranks))
        return columns

    def estimates(self) -> dict[str, Floats]:
        """One rank's time over the roofline's, and its 90 % interval; nan where unknown."""
        seconds, kernels = self.seconds, self.usage.kernels
        return {
            "eta": shares(self.total(seconds), self.total(seconds / kernels.roofline_ratio), otherwise=nan),
            "low_seconds": self.total(self._spent("low")),
            "high_seconds": self.total(self._spent("high")),
            "extrapolated_share": shares(self.total(seconds * (kernels.costs.extrapolated > 0)), self.total(seconds)),
        }

    def heaviest(self) -> dict[str, list[Any]]:
        """The number of shapes of each kernel, and the shape and launch that took most time."""
        kernels, (numbers, names) = self.usage.kernels, self.usage.kernels.shapes.distinct()
        cells, shapes = np.unique(self.groups * len(names) + numbers, return_inverse=True)
        group, name = np.divmod(cells, max(len(names), 1))
        seconds, launch = sums(shapes, self.seconds, len(cells)), np.zeros(len(cells), np.int64)
        launch[shapes] = kernels.kind
        longest = np.zeros(self.count)
        np.maximum.at(longest, group, seconds)
        # Of those that took as long, the first by name.
        first = sorted(np.flatnonzero(seconds == longest[group]).tolist(), key=lambda shape: names[name[shape]])
        most = dict(zip(group[first[::-1]].tolist(), first[::-1], strict=True))
        chosen = [most[number] for number in range(self.count)]
        return {"shapes": np.bincount(group, minlength=self.count).tolist(),
                "heaviest_shape": [names[name[shape]] for shape in chosen],
                "heaviest_launch": [kernels.kinds[launch[shape]].launch for shape in chosen]}

    def _possible(self, peak: str, ranks: Ints) -> Floats:
        """The FLOP or bytes that *ranks* of each stage step can do at their peak in each kernel's time."""
        rates = self.usage.steps.per_engine(peak)[self.usage.steps.stage_step_rows]
        return self.total(self.usage.lasts(ranks * rates))

    def sources(self) -> list[str]:
        """The sources of each kernel's times."""
        found: list[set[str]] = [set() for _ in range(self.count)]
        kinds, kind = self.usage.kernels.kinds, self.usage.kernels.kind
        for cell in np.unique(self.groups * len(kinds) + kind).tolist():
            found[cell // len(kinds)].add(kinds[cell % len(kinds)].source)
        return ["; ".join(sorted(sources - {""})) for sources in found]


def _waiting(history: History, busy: float, drawn: float) -> list[dict[str, Any]]:
    """The rows `host` and `idle`, beside *busy* seconds in which GPUs have *drawn* so many static joules."""
    stages = floats(history.engines, "stages")
    host = product(history.host_waits, stages[history.steps.engine])
    held = allocated_gpu_seconds(history.engines, history.duration) / floats(history.engines, "ranks")
    idle = max(0.0, float(held.sum()) - busy - host)
    steps = history.steps
    asleep = np.minimum(history.naps, history.host_gaps) * (steps.per_engine("static_watts")
                                                            - steps.per_engine("sleep_watts"))
    waited = product(history.host_waits * steps.per_engine("static_watts") - asleep, steps.gpus)
    rest = max(0.0, history.static_joules - drawn - waited)
    return [{"label": name, "family": name, "seconds": seconds, "static_joules": joules}
            for name, seconds, joules in ((HOST, host, waited), (IDLE, idle, rest))]


_SCHEMA = pa.schema([
    ("label", pa.string()), ("family", pa.string()), ("launches", pa.int64()), ("seconds", pa.float64()),
    ("hidden_seconds", pa.float64()), ("gpu_seconds", pa.float64()),
    ("run_share", pa.float64()), ("busy_share", pa.float64()),
    *((f"{bound}_share", pa.float64()) for bound in BOUNDS),
    ("mean_waves", pa.float64()), ("mean_idle_sms", pa.float64()),
    ("flops", pa.float64()), ("bytes", pa.float64()), ("joules", pa.float64()), ("static_joules", pa.float64()),
    ("flops_share", pa.float64()), ("bandwidth_share", pa.float64()),
    ("eta", pa.float64()), ("low_seconds", pa.float64()), ("high_seconds", pa.float64()),
    ("extrapolated_share", pa.float64()),
    ("shapes", pa.int64()), ("heaviest_shape", pa.string()), ("heaviest_launch", pa.string()), ("source", pa.string()),
])
