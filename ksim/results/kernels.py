"""Where the time went: every kernel's share of the run, beside waiting for the CPU and having nothing to do."""

from collections.abc import Callable, Hashable
from functools import cached_property
from math import isnan, nan
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import define

from ksim.flow.timeline import Span
from ksim.results.arrays import Bools, Floats, Ints, floats, shares, sums
from ksim.results.history import History
from ksim.results.occurrences import Occurrences
from ksim.results.steps import Steps

BOUNDS = ("compute", "memory", "launch", "communication")
HOST, IDLE = "host", "idle"


def kernel_table(history: History, occurrences: Occurrences) -> pa.Table:
    """One row per kernel, by label and family, and the rows `host` and `idle`; most seconds first.

    Seconds and launches are those of one rank of each pipeline stage, so that all
    rows together last as long as the run, times the stages; FLOP, bytes and
    joules are those of all GPUs.  docs/glossary.md describes every column.
    """
    columns = kernel_columns(history, occurrences, np.ones(len(history.steps), dtype=bool))
    busy = float(np.sum(columns["seconds"]))
    columns["busy_share"] = shares(columns["seconds"], busy)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*(list(c) for c in columns.values()), strict=True)]
    rows += _waiting(history, busy)
    total = sum(row["seconds"] for row in rows)
    for row in rows:
        row["run_share"] = row["seconds"] / total if total else None
    rows.sort(key=lambda row: (-row["seconds"], row["label"], row["family"]))
    for row in rows:  # what nobody knows is null in a file
        row.update((name, None) for name, value in list(row.items()) if isinstance(value, float) and isnan(value))
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def kernel_columns(history: History, occurrences: Occurrences, which: Bools) -> dict[str, Any]:
    """What `kernel_table` says of kernels, as columns, counting only the steps in *which*."""
    groups, keys = occurrences.groups(lambda span: (span.label, span.family))
    tally = _Tally(occurrences, history.steps, groups, len(keys), which)
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


@define(eq=False, slots=False)
class _Tally:
    """Sums over the spans of each of `count` groups, in the steps in `which`."""

    occurrences: Occurrences
    steps: Steps
    groups: Ints
    count: int
    which: Bools

    def lanes(self, weights: Floats | Ints) -> Floats:
        """How often each span ran, every lane weighing what it says."""
        return self.occurrences.counts(self.which[self.steps.lane_step] * weights)

    def total(self, amounts: Floats) -> Floats:
        return sums(self.groups, amounts, self.count)

    @cached_property
    def runs(self) -> Floats:
        """How often each span ran on one rank."""
        return self.lanes(np.ones(len(self.steps.lanes)))

    @cached_property
    def seconds(self) -> Floats:
        """How long each span ran on one rank."""
        return self._spent("seconds")

    def _spent(self, name: str) -> Floats:
        return self.occurrences.spent(self.which[self.steps.lane_step].astype(float), name)

    def time(self) -> dict[str, Floats]:
        """How often and how long one rank ran each kernel, and what limited it for which share of that."""
        seconds, bounds = self.seconds, [s.bound for s in self.occurrences.spans]
        columns = {"launches": self.total(self.runs), "seconds": self.total(seconds),
                   "hidden_seconds": self.total(self.runs * self.occurrences.column("hidden"))}
        for bound in BOUNDS:
            limited = np.array([name == bound for name in bounds], dtype=bool)
            columns[f"{bound}_share"] = shares(self.total(seconds * limited), columns["seconds"])
        return columns

    def waves(self) -> dict[str, Floats]:
        """How well its launches fill the GPU: means over launches."""
        launches, waves, idle = self.total(self.runs), self.occurrences.column("waves"), self.occurrences.column("idle")
        return {
            "mean_waves": shares(self.total(self.runs * waves), launches),
            "mean_idle_sms": shares(self.total(self.runs * idle), launches),
        }

    def work(self) -> dict[str, Floats]:
        """What all GPUs did for each kernel, and what share of their peaks that is."""
        everywhere, column = self.lanes(self.steps.lane_ranks), self.occurrences.column
        columns = {name: self.total(everywhere * column(name)) for name in ("flops", "bytes")}
        columns["joules"] = self.total(self.occurrences.drawn(self.which[self.steps.lane_step] * self.steps.lane_ranks))
        ranks = self.which[self.steps.lane_step] * self.steps.lane_ranks
        columns["gpu_seconds"] = self.total(self.occurrences.spent(ranks) + self.lanes(self.steps.lane_ranks)
                                            * column("hidden"))
        columns["flops_share"] = shares(columns["flops"], self._possible("peak_flops"))
        columns["bandwidth_share"] = shares(columns["bytes"], self._possible("peak_bandwidth"))
        return columns

    def estimates(self) -> dict[str, Floats]:
        """How one rank's time compares with the roofline's, and how far it may be off; nan where nobody knows."""
        seconds, column = self.seconds, self.occurrences.column
        return {
            "eta": shares(self.total(seconds), self.total(seconds / column("eta")), otherwise=nan),
            "low_seconds": self.total(self._spent("low")),
            "high_seconds": self.total(self._spent("high")),
            "extrapolated_share": shares(self.total(seconds * column("extrapolated")), self.total(seconds)),
        }

    def heaviest(self) -> dict[str, list[Any]]:
        """How many shapes each kernel came in, and the shape and launch that took most time."""
        seconds, found = self.seconds, self.occurrences.spans
        by_shape: list[dict[str, float]] = [{} for _ in range(self.count)]
        launch: dict[tuple[int, str], str] = {}
        for group, span, time in zip(self.groups.tolist(), found, seconds.tolist(), strict=True):
            shape = str(span.shape)
            by_shape[group][shape] = by_shape[group].get(shape, 0.0) + time
            launch[group, shape] = span.launch
        most = [max(sorted(shapes), key=shapes.__getitem__) for shapes in by_shape]
        return {"shapes": [len(shapes) for shapes in by_shape], "heaviest_shape": most,
                "heaviest_launch": [launch[group, shape] for group, shape in enumerate(most)]}

    def _possible(self, peak: str) -> Floats:
        """What all GPUs could have done in each kernel's time."""
        rates = self.steps.lane_ranks * self.steps.per_engine(peak)[self.steps.lane_step]
        return self.total(self.lanes(rates) * self.occurrences.column("lasts"))

    def sources(self) -> list[str]:
        """Where the times of each kernel come from."""
        found: list[set[str]] = [set() for _ in range(self.count)]
        for group, span in zip(self.groups.tolist(), self.occurrences.spans, strict=True):
            found[group].add(span.source)
        return ["; ".join(sorted(sources - {""})) for sources in found]


def seconds_by(history: History, occurrences: Occurrences, attribute: str) -> tuple[list[str], Floats]:
    """Split each step's seconds by the family or bound of its kernels: (the names, (steps, names) seconds).

    They are those of one rank of each pipeline stage, added up over the stages.
    """
    return seconds_of(history, occurrences, lambda span: getattr(span, attribute))


def seconds_of(history: History, occurrences: Occurrences,
               key: Callable[[Span], Hashable]) -> tuple[list[Any], Floats]:
    """The same by what *key* makes of the kernels."""
    groups, names = occurrences.groups(key)
    lanes = occurrences.seconds_by_lane(groups, len(names))
    steps, width = history.steps, len(names)
    cells = (steps.lane_step[:, None] * width + np.arange(width)).ravel()
    return names, sums(cells, lanes.ravel(), len(steps) * width).reshape(len(steps), width)


def _waiting(history: History, busy: float) -> list[dict[str, Any]]:
    """The rows for the time in which the GPUs did not work."""
    stages = floats(history.engines, "stages")
    host = float(history.host_waits @ stages[history.steps.engine])
    idle = max(0.0, float(stages.sum()) * history.duration - busy - host)
    return [{"label": name, "family": name, "seconds": seconds} for name, seconds in ((HOST, host), (IDLE, idle))]


_SCHEMA = pa.schema([
    ("label", pa.string()), ("family", pa.string()), ("launches", pa.int64()), ("seconds", pa.float64()),
    ("hidden_seconds", pa.float64()), ("gpu_seconds", pa.float64()),
    ("run_share", pa.float64()), ("busy_share", pa.float64()),
    *((f"{bound}_share", pa.float64()) for bound in BOUNDS),
    ("mean_waves", pa.float64()), ("mean_idle_sms", pa.float64()),
    ("flops", pa.float64()), ("bytes", pa.float64()), ("joules", pa.float64()),
    ("flops_share", pa.float64()), ("bandwidth_share", pa.float64()),
    ("eta", pa.float64()), ("low_seconds", pa.float64()), ("high_seconds", pa.float64()),
    ("extrapolated_share", pa.float64()),
    ("shapes", pa.int64()), ("heaviest_shape", pa.string()), ("heaviest_launch", pa.string()), ("source", pa.string()),
])
