"""The directory of a study as points: the means of each point's replications, and its scenario.

Numbers and settings of points, as the pages of studies write them.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from attrs import define, frozen

from ksim.foundation.errors import DataError
from ksim.foundation.units import in_one_unit
from ksim.results.numbers import MORE, OF_STUDIES, number_of
from ksim.study.grid import short_names, value_text
from ksim.study.pareto import SATURATED, Objective, Requirement
from ksim.study.routers import is_yardstick
from ksim.study.rows import OK, RunRow
from ksim.study.sweep import StudyDirectory
from ksim.views.tables import Markup, element
from ksim.views.wording import number, outwards

#: Why a router that the others are held against is no rival of theirs.
YARDSTICK = "it is the yardstick, which knows what no router can know"


@frozen(eq=False)
class Point:
    """Settings that were run one or several times: the means of their numbers, and between which ends these lay."""

    number: int
    settings: Mapping[str, Any]
    runs: int
    failed: int
    problem: str
    means: Mapping[str, float]
    ends: Mapping[str, tuple[float, float]]
    saturated: bool
    scenario: str

    @classmethod
    def of(cls, rows: Sequence[RunRow]) -> "Point":
        """The point of these *rows*, its replications."""
        good = [row for row in rows if row.status == OK]
        values: dict[str, list[float]] = defaultdict(list)
        for row in good:
            for key, value in row.numbers.items():
                if value is not None and not isinstance(value, bool):
                    values[key].append(float(value))
        problem = next((row.problem or row.unserved or row.status for row in rows if row.status != OK), "")
        return cls(rows[0].point, rows[0].settings, len(rows), len(rows) - len(good), problem,
                   means={key: sum(found) / len(found) for key, found in values.items()},
                   ends={key: (min(found), max(found)) for key, found in values.items()},
                   saturated=any(row.numbers.get("saturated") for row in good),
                   scenario=next((row.scenario for row in rows if row.scenario), ""))


@define(eq=False, slots=False)
class Study:
    """A study: what it did, and its points.

    `capacity` is the content of capacity.json, and `plan` that of plan.json; {} for other studies.
    """

    directory: Path
    kind: str
    title: str
    command: Mapping[str, Any]
    scenario: str
    rows: Sequence[RunRow]
    capacity: Mapping[str, Any]
    plan: Mapping[str, Any]
    best: str

    @classmethod
    def read(cls, directory: Path) -> "Study":
        """Read a study, finished or not; raises ConfigError and DataError."""
        found = StudyDirectory.read(directory)
        best = directory / "best.toml"
        return cls(directory, found.head.kind, found.head.title, found.head.command, found.scenario, rows=found.rows,
                   capacity=_answer(directory, "capacity.json"), plan=_answer(directory, "plan.json"),
                   best=best.read_text(encoding="utf-8") if best.is_file() else "")

    @cached_property
    def points(self) -> list[Point]:
        """The points in order."""
        found: dict[int, list[RunRow]] = defaultdict(list)
        for row in self.rows:
            found[row.point].append(row)
        return [Point.of(found[number]) for number in sorted(found)]

    @property
    def axes(self) -> list[str]:
        """The settings that vary, by their dotted keys."""
        return list(dict.fromkeys(key for point in self.points for key in point.settings))

    @cached_property
    def scales(self) -> dict[str, tuple[list[float | None], str]]:
        """The settings that are quantities: the number of each point, and their unit."""
        return {key: found for key in self.axes
                if (found := in_one_unit([point.settings.get(key) for point in self.points]))}

    @cached_property
    def keys(self) -> list[str]:
        """The numbers that any point has and that are not the same everywhere, objectives first."""
        known = dict.fromkeys(key for point in self.points for key in point.means)
        telling = [key for key in known if len({point.means.get(key) for point in self.points}) > 1]
        first = [key for key in self.objectives if key in known]
        return [*first, *(key for key in telling or known if key not in first)]

    @cached_property
    def wanted(self) -> list[Objective]:
        """What the study was to make small or large; empty for a sweep, which has no such wish."""
        return [Objective.parse(text) for text in self.command.get("objectives") or ()]

    @property
    def objectives(self) -> list[str]:
        """The numbers that are wanted."""
        return [objective.key for objective in self.wanted]

    @cached_property
    def required(self) -> list[Requirement]:
        """What a tune is subject to."""
        return [Requirement.parse(text) for text in self.command.get("require") or ()]

    def problem(self, point: Point) -> str:
        """Why a point does not count; "" where it does."""
        if self.kind == "routers" and is_yardstick(point.settings):
            return point.problem or YARDSTICK
        if point.problem or point.saturated:
            return point.problem or SATURATED
        return next((reason for bound in self.required if (reason := bound.missed(point.means))), "")

    @cached_property
    def counting(self) -> list[Point]:
        """The points that count."""
        return [point for point in self.points if point.means and not self.problem(point)]

    def more(self, key: str) -> bool:
        """Whether more of a number is better."""
        said = [objective.maximise for objective in self.wanted if objective.key == key]
        return said[0] if said else number_of(key).better == MORE


def _answer(directory: Path, name: str) -> Mapping[str, Any]:
    path = directory / name
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise DataError(str(path), "cannot be read; ask the question again") from None
    return content if isinstance(content, dict) else {}


def shown_keys(study: Study) -> list[str]:
    """The numbers of a study that its table shows: the objectives, and those that most ask for."""
    known = {key for point in study.points for key in point.means}
    return [*dict.fromkeys(key for key in (*study.objectives, *OF_STUDIES) if key in known)]


def mean(point: Point, key: str) -> Markup | str:
    """The mean of a number at *point*, and its ends where replications differ."""
    if key not in point.means:
        return "-"
    value, (low, high) = point.means[key], point.ends[key]
    spread = element("span", f" {outwards(low, high)}", cls="interval") if high > low else None
    return element("span", element("data", number(value), value=json.dumps(value), data_point=point.number,
                                   data_key=key), spread)


def settings_text(point: Point, axes: Sequence[str]) -> str:
    """The settings of *point* in a line."""
    names = short_names(axes)
    return ", ".join(f"{names[key]} {value_text(point.settings[key])}" for key in axes if key in point.settings) or (
        "as the scenario says")


def plain(value: Any) -> Any:
    """A setting as a figure has it: a number, or text; a dash for what a point leaves to the scenario."""
    if value is None:
        return "-"
    return value if isinstance(value, int | float) and not isinstance(value, bool) else value_text(value)
