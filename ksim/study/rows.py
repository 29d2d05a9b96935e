"""The runs of a study as rows: of values, of lines of JSON, and of runs.parquet."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tomli_w
from attrs import asdict, frozen

from ksim.simulation.scenario_tables import native, put
from ksim.study.grid import Outcome, Settings, value_text
from ksim.study.objectives import derived

if TYPE_CHECKING:
    import pyarrow as pa

Number = float | int | bool | None

OK, FAILED, NOT_RUN = "ok", "failed", "not run"
#: Of a tuning: a run that was ended early; its numbers are those that were told of it.
STOPPED = "stopped"
#: The columns around those of the axes, and those of the numbers.
FIRST, THEN, LAST = ("point", "replication", "seed"), ("status", "problem", "unserved"), ("settings", "scenario")
#: Where the file keeps the keys of the axes: one of them may be `seed`, which has no column of its own.
_AXES = b"ksim.axes"


@frozen
class Row:
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

    @classmethod
    def of(cls, point: int, replication: int, seed: int, settings: Settings, outcome: Outcome) -> "Row":
        """The run of that *point* and *replication* whose *outcome* is known."""
        summary = outcome.summary
        told = {} if summary is None else dict(flat_numbers(summary)) | derived(summary)
        numbers = {key: value for key, value in told.items() if key not in settings and key not in FIRST}
        return cls(point, replication, seed, native(settings, "settings"), status=FAILED if summary is None else OK,
                   problem=outcome.problem, unserved=outcome.unserved, numbers=numbers, scenario=outcome.scenario)

    @classmethod
    def parse(cls, line: str | bytes) -> "Row":
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
        """What the rows of a study are sorted by."""
        return self.point, self.replication

    @property
    def changes(self) -> dict[str, Any]:
        """What the run changes in the scenario of the study: its settings, and its seed where that is a replication's.
        """
        return {**self.settings, "seed": self.seed} if self.replication else dict(self.settings)


def flat_numbers(summary: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Number]]:
    """The numbers of *summary* by dotted keys; texts are left out."""
    for key, value in summary.items():
        if isinstance(value, Mapping):
            yield from flat_numbers(value, f"{before}{key}.")
        elif value is None or isinstance(value, bool | int | float):
            yield before + key, value


def to_table(rows: Sequence[Row]) -> "pa.Table":
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


def from_table(table: "pa.Table") -> list[Row]:
    """The rows that `to_table` was given, in its order; raises KeyError and ValueError for any other table."""
    axes = axes_of(table)
    before = {*FIRST, *THEN, *LAST, *axes}
    names = [name for name in table.column_names if name not in before]
    fixed = [*FIRST, *THEN, "scenario"]
    return [Row(settings=_settings(record["settings"], axes), **{name: record[name] for name in fixed},
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
