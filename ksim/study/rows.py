"""The runs of a study as rows: of values, of lines of JSON, and of runs.parquet.

A `SweepPoint` has the replications of a point together, with means and their intervals; `best`, `first` and `remarks`
sum a study up in a few lines.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import tomli_w
from attrs import asdict, evolve, frozen

from ksim.results.numbers import BEST_BY, derived
from ksim.scenario.files import native
from ksim.scenario.scenario import put
from ksim.study.experiment import Outcome
from ksim.study.grid import Settings, short_names, value_text
from ksim.study.pareto import Goals, Objective
from ksim.study.students_t import student
from ksim.views.tables import Table, notebook
from ksim.views.wording import number

if TYPE_CHECKING:
    import pyarrow as pa


Number = float | int | bool | None

OK, FAILED, NOT_RUN = "ok", "failed", "not run"
#: Of a tuning: a run that was ended early; its numbers are those that were known by then.
STOPPED = "stopped"
#: The columns around those of the axes, and those of the numbers.
FIRST, THEN, LAST = ("point", "replication", "seed"), ("status", "problem", "unserved"), ("settings", "scenario")
#: Where the file keeps the keys of the axes: one of them may be `seed`, which has no column of its own.
_AXES = b"ksim.axes"


@frozen
class RunRow:
    """One run of a study: a replication of a point, and how it went.

    Points are numbered from 1, replications from 0.  `settings` are the values of the axes by their dotted keys.
    `problem` says why a run that failed has no `numbers`; `unserved` which requests were not served, and why.
    `scenario` is the whole scenario in TOML, with the replication's `seed`.
    """

    point: int
    replication: int
    seed: int
    settings: Settings
    status: str = NOT_RUN
    problem: str = ""
    unserved: str = ""
    numbers: Mapping[str, Number] = {}
    scenario: str = ""

    def ended(self, outcome: Outcome) -> "RunRow":
        """This run, which had not been run, with how it went."""
        summary, settings = outcome.summary, self.settings
        measured = {} if summary is None else dict(flat_numbers(summary)) | derived(summary)
        numbers = {key: value for key, value in measured.items() if key not in settings and key not in FIRST}
        return evolve(self, settings=native(settings, "settings"), status=FAILED if summary is None else OK,
                      problem=outcome.problem, unserved=outcome.unserved, numbers=numbers, scenario=outcome.scenario)

    @classmethod
    def parse(cls, line: str | bytes) -> "RunRow":
        """The row that `line` has written; raises ValueError for text that is none."""
        try:
            return cls(**json.loads(line))
        except TypeError as error:
            raise ValueError(str(error)) from None

    @property
    def line(self) -> str:
        """The row as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"

    @property
    def key(self) -> tuple[int, int]:
        """The point and the replication, by which rows of a study are sorted."""
        return self.point, self.replication

    @property
    def changes(self) -> dict[str, Any]:
        """The changes to the scenario of the study: the settings, and the seed if that is a replication's."""
        return {**self.settings, "seed": self.seed} if self.replication else dict(self.settings)


def flat_numbers(summary: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Number]]:
    """The numbers of *summary* by dotted keys; texts are left out."""
    for key, value in summary.items():
        if isinstance(value, Mapping):
            yield from flat_numbers(value, f"{before}{key}.")
        elif value is None or isinstance(value, bool | int | float):
            yield before + key, value


def to_table(rows: Sequence[RunRow]) -> "pa.Table":
    """The table of *rows*, by point and replication; the same whatever the order in which they ended."""
    import pyarrow as pa

    rows = sorted(rows, key=lambda row: row.key)
    axes = list(dict.fromkeys(key for row in rows for key in row.settings))
    taken = {*FIRST, *THEN, *LAST}
    measured = dict.fromkeys(key for row in rows for key in row.numbers)
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in FIRST}
    columns |= {key: [row.settings.get(key) for row in rows] for key in axes if key not in taken}
    columns |= {name: [getattr(row, name) for row in rows] for name in THEN}
    columns |= {key: [row.numbers.get(key) for row in rows] for key in measured if key not in columns}
    columns |= {"settings": [_toml(row.changes) for row in rows], "scenario": [row.scenario for row in rows]}
    arrays = {name: _array(values) for name, values in columns.items()}
    return pa.table(arrays).replace_schema_metadata({_AXES: json.dumps(axes)})


def from_table(table: "pa.Table") -> list[RunRow]:
    """The rows that `to_table` was given, in its order; raises KeyError and ValueError for any other table."""
    axes = axes_of(table)
    before = {*FIRST, *THEN, *LAST, *axes}
    names = [name for name in table.column_names if name not in before]
    fixed = [*FIRST, *THEN, "scenario"]
    return [RunRow(settings=_settings(record["settings"], axes), **{name: record[name] for name in fixed},
                numbers=_numbers(record, names)) for record in table.to_pylist()]


def _numbers(record: Mapping[str, Any], names: Sequence[str]) -> dict[str, Number]:
    """Those of *record*: all of a run that went well, and of one that was stopped what was told of it."""
    if record["status"] == STOPPED:
        return {name: record[name] for name in names if record[name] is not None}
    return {name: record[name] for name in names} if record["status"] == OK else {}


def axes_of(table: "pa.Table") -> list[str]:
    """The keys of the axes of a study's *table*; raises KeyError where it is no such table."""
    axes: list[str] = json.loads((table.schema.metadata or {})[_AXES])
    return axes


def _toml(changes: Mapping[str, Any]) -> str:
    nested: dict[str, Any] = {}
    for key, value in changes.items():
        put(nested, key, value)
    return tomli_w.dumps(nested)


def _settings(text: str, axes: Sequence[str]) -> Settings:
    """The settings of a run by their dotted keys; those that it leaves to the scenario are not there."""
    nested = tomllib.loads(text)
    return {key: value for key in axes if (value := _at(nested, key)) is not None}


def _at(table: Any, key: str) -> Any:
    for word in key.split("."):
        table = table.get(word) if isinstance(table, dict) else None
    return table


def _array(values: Sequence[Any]) -> "pa.Array":
    """The column of *values*: numbers where all are, else texts."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    known: tuple[tuple[set[type], pa.DataType], ...] = (
        (set(), pa.float64()), ({bool}, pa.bool_()), ({int}, pa.int64()), ({int, float}, pa.float64()),
        ({str}, pa.string()))
    for several, kind in known:
        if kinds <= several:
            return pa.array(values, kind)
    return pa.array([None if value is None else value_text(value) for value in values], pa.string())


@frozen
class SweepPoint:
    """A point of a sweep: its `rows` by replication, and its `outcome`, in which numbers are their means."""

    rows: Sequence[RunRow]
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


def points_of(rows: Sequence[RunRow]) -> list[SweepPoint]:
    """The points of a study's *rows*, in order."""
    ordered = sorted(rows, key=lambda row: row.key)
    groups = (list(group) for _, group in groupby(ordered, key=lambda row: row.point))
    return [SweepPoint(group, _outcome(group)) for group in groups]


def half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean of *values*, by Student's t; not a number for fewer than two."""
    if len(values) < 2:
        return math.nan
    return student(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def _outcome(rows: Sequence[RunRow]) -> Outcome:
    """The outcome of a point: its only run, or the means of its replications, of which none may have failed."""
    first = rows[0]
    if failed := [row for row in rows if row.status != OK]:
        problem = failed[0].problem or failed[0].status
        if len(rows) > 1:
            problem = f"{len(failed)} of {len(rows)} replications: {problem}"
        return Outcome(first.settings, scenario=first.scenario, problem=problem)
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


#: More points than these make a page too long; `Sweep.to_pandas` has all.
_MOST = 20


def best(points: Sequence[SweepPoint]) -> Table:
    """The best point by each number of `BEST_BY`; points that did not keep up with their load do not count."""
    keys, rows = _axes(points), []
    for objective in map(Objective.parse, BEST_BY):
        ranked = Goals((objective,)).rank([point.outcome for point in points])
        if ranked and ranked[0].on_front:
            point = next(point for point in points if point.outcome is ranked[0].outcome)
            rows.append((str(objective), _text(point, objective.key), str(point.number), *point.texts(keys)))
    return Table.of("best by", ">value", ">point", *short_names(keys).values(), rows=rows)


def first(points: Sequence[SweepPoint]) -> Table:
    """The first points, with the same numbers."""
    axes = _axes(points)
    keys = [key for key in BEST_BY if any(point.value(key) is not None for point in points)]
    rows = [(str(point.number), *point.texts(axes), *(_text(point, key) for key in keys), point.outcome.problem)
            for point in points[:_MOST]]
    return Table.of(">point", *short_names(axes).values(), *(f">{key}" for key in keys), "", rows=rows)


def remarks(rows: Sequence[RunRow]) -> Iterator[str]:
    """The number of runs, how many failed and why, and how many were not run."""
    replications = max((row.replication for row in rows), default=0) + 1
    times = f", {replications} replications of each" if replications > 1 else ""
    yield f"{_counted(len(rows), 'run')} of {_counted(len({row.point for row in rows}), 'point')}{times}"
    problems = [row.problem for row in rows if row.status == FAILED]
    for problem in dict.fromkeys(problems):
        yield f"{_counted(problems.count(problem), 'run')} failed: {problem}"
    if left := sum(row.status == NOT_RUN for row in rows):
        yield f"{_counted(left, 'run')} not run"


def sweep_html(title: str, rows: Sequence[RunRow]) -> str:
    """A study in a notebook: the best points, the first ones, and what failed."""
    points = points_of(rows)
    more = f"and {len(points) - _MOST} more points" if len(points) > _MOST else ""
    return notebook(title, best(points), first(points), more, *remarks(rows))


def _axes(points: Sequence[SweepPoint]) -> list[str]:
    return list(dict.fromkeys(key for point in points for key in point.settings))


def _text(point: SweepPoint, key: str) -> str:
    """A number with its interval, if there is one."""
    value = point.value(key)
    spread = math.nan if value is None else point.half_width(key)
    return number(value) + ("" if math.isnan(spread) else f" ± {number(spread)}")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
