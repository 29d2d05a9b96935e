"""The replications of a point together: means, and how sure they are."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import fmean, stdev
from typing import Any

from attrs import frozen

from ksim.study.grid import Outcome, Settings, value_text
from ksim.study.rows import OK, Number, Row
from ksim.study.students_t import student


@frozen
class SweepPoint:
    """A point of a sweep: its `rows` by replication, and its `outcome`, in which numbers are their means."""

    rows: Sequence[Row]
    outcome: Outcome

    @property
    def number(self) -> int:
        return self.rows[0].point

    @property
    def settings(self) -> Settings:
        return self.rows[0].settings

    def value(self, key: str) -> Any:
        """The mean of a number; None where the point has none."""
        return (self.outcome.summary or {}).get(key)

    def half_width(self, key: str) -> float:
        """Half the width of the 95 % interval of that mean; not a number where there are fewer than two replications.
        """
        return half_width([float(row.numbers[key] or 0) for row in self.rows])

    def texts(self, keys: Iterable[str]) -> list[str]:
        """The settings of these *keys* as texts."""
        return [value_text(self.settings[key]) if key in self.settings else "" for key in keys]

    def record(self) -> dict[str, Any]:
        """The point as a row of a table: settings, means, and half widths as ``KEY_half_width``."""
        numbers = dict(self.outcome.summary or {})
        known = [key for key, value in numbers.items() if value is not None and not isinstance(value, bool)]
        return {"point": self.number, **self.settings, "replications": len(self.rows), "problem": self.outcome.problem,
                **numbers, **{f"{key}_half_width": self.half_width(key) for key in known}}


def points_of(rows: Sequence[Row]) -> list[SweepPoint]:
    """The points of a study's *rows*, in order."""
    ordered = sorted(rows, key=lambda row: row.key)
    groups = (list(group) for _, group in groupby(ordered, key=lambda row: row.point))
    return [SweepPoint(group, _outcome(group)) for group in groups]


def half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean of *values*, by Student's t; not a number for fewer than two."""
    if len(values) < 2:
        return math.nan
    return student(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def _outcome(rows: Sequence[Row]) -> Outcome:
    """How a point went: its only run, or the means of its replications, of which none may have failed."""
    first = rows[0]
    if failed := [row for row in rows if row.status != OK]:
        problem = failed[0].problem or failed[0].status
        said = problem if len(rows) == 1 else f"{len(failed)} of {len(rows)} replications: {problem}"
        return Outcome(first.settings, scenario=first.scenario, problem=said)
    unserved = next((row.unserved for row in rows if row.unserved), "")
    return Outcome(first.settings, _means([row.numbers for row in rows]), first.scenario, unserved=unserved)


def _means(several: Sequence[Mapping[str, Number]]) -> dict[str, Number]:
    """The mean of each number; None where one of them is, and true where one of several truths is."""
    if len(several) == 1:
        return dict(several[0])
    return {key: _mean([numbers.get(key) for numbers in several]) for key in several[0]}


def _mean(values: Sequence[Number]) -> Number:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return any(known) if all(isinstance(value, bool) for value in known) else fmean(known)
