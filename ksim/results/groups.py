"""The numbers of requests that are called alike: those of each workload of a mix, each model and each tenant.

docs/glossary.md defines every key.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from attrs import define, field

from ksim.results.history import History
from ksim.results.metrics import RequestTotals, counts, good, spread, throughput
from ksim.results.numbers import GROUP_LATENCIES, GROUPS, LatencyTargets, Summary
from ksim.results.steps import Bools, Floats

__all__ = ["GroupTotals", "RequestGroups", "with_groups"]


def _members(history: History) -> Iterator[tuple[str, str, Bools]]:
    """The key of a table, the name of one of its rows, and which requests are in that row."""
    requests, several = history.requests, any(built.model for built in history.engines)
    for key, called in GROUPS.items():
        names = requests.names(called)
        if key != "models" or several:
            yield from ((key, name, names == name) for name in dict.fromkeys(names.tolist()) if name)


@define(eq=False)
class GroupTotals:
    """The totals of the requests of one row so far, whether any of them has targets, and their latencies by part."""

    aimed: bool = False
    served: RequestTotals = field(factory=RequestTotals)
    latencies: dict[str, list[Floats]] = field(factory=lambda: {name: [] for name in GROUP_LATENCIES})

    def take(self, name: str, seconds: Floats) -> None:
        """Add latencies."""
        self.latencies[name].append(seconds)

    def spread(self, name: str) -> Summary:
        """The statistics of a latency."""
        return spread(name, np.concatenate([np.zeros(0), *self.latencies[name]]))


@define(eq=False)
class RequestGroups:
    """The totals of all rows so far by table and name; `kind` makes those of a new row."""

    limits: LatencyTargets
    kind: type[GroupTotals] = GroupTotals
    rows: dict[tuple[str, str], GroupTotals] = field(factory=dict, init=False)

    def add(self, history: History, ended: Bools) -> None:
        """Add the requests that have *ended*."""
        within, requests = good(history, self.limits), history.requests
        for key, name, members in _members(history):
            which = members & ended
            if not which.any():
                continue
            row = self.rows.setdefault((key, name), self.kind())
            row.served += RequestTotals.of(history, which, within)
            row.aimed = row.aimed or any(map(self.limits.of_workload, {*requests.names("workload")[which].tolist()}))
            for latency in GROUP_LATENCIES:
                row.take(latency, requests.latencies(latency, requests.completed & which))

    def summary(self, duration: float) -> dict[str, dict[str, Summary]]:
        """The rows of each table by name, of a run of this *duration*; none of a table without rows."""
        made: dict[str, dict[str, Summary]] = {}
        for key, name in sorted(self.rows):
            row, own = self.rows[key, name], self.limits.of_workload(name) if key == "workloads" else self.limits
            made.setdefault(key, {})[name] = {
                **{f"slo_{latency}_ms": 1e3 * limit for latency, limit in own.set.items() if key == "workloads"},
                **{number: value for number, value in counts(row.served, duration).items() if number != "duration"},
                **throughput(row.served, duration, own if row.aimed else LatencyTargets()),
                **{number: value for latency in GROUP_LATENCIES for number, value in row.spread(latency).items()}}
        return made


def with_groups(measured: Summary, made: Mapping[str, Mapping[str, Summary]]) -> Summary:
    """The numbers *measured* of a run and the tables *made* of it; a gateway has counted tenants already."""
    counted: Mapping[str, Any] = measured.get("tenants", {})
    tables = {key: {name: {**row, **(counted.get(name, {}) if key == "tenants" else {})} for name, row in rows.items()}
              for key, rows in made.items()}
    return {**measured, **tables}
