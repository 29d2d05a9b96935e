"""The front of a sweep: its points against each other in a table, and the best of them as scenarios and in a figure."""

import csv
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from ksim.cli.flags import console
from ksim.study.grid import short_names, value_text
from ksim.study.pareto import Goals, Objective, ParetoPoint
from ksim.views import run_directory
from ksim.views.tables import Table
from ksim.views.wording import number

#: The files by which the folder of an earlier front is recognised.
MARKS = ("points.csv", "pareto.png")
#: The most characters of a file name: file systems take about 255.
_LONGEST = 120
#: From this multiple of the best value on, a value is shown as a multiple, not as a percentage above it.
_MULTIPLE = 2.0


def claimed(folder: Path, force: bool) -> AbstractContextManager[None]:
    """Hold *folder*, in which a front is to be written; raises ConfigError unless it can be."""
    return run_directory.claimed(folder.resolve(), MARKS, force)


@contextmanager
def folder_of(output: Path, study: Path | None) -> Iterator[Path]:
    """Where a front is written: into its own *study*, or whole or not at all in the place of an earlier front."""
    if output == study:
        yield output
        return
    with run_directory.replacing(output, MARKS) as new:
        yield new


def show(points: Sequence[ParetoPoint], goals: Goals) -> None:
    """Print a row for each point that has values, why others do not count, and a line for each without values."""
    screen, keys = console(), list(points[0].outcome.settings)
    leading = [point.values for point in points if point.on_front]
    best = [min(column, key=objective.cost) for objective, column in zip(
        goals.objectives, zip(*leading, strict=True), strict=False)]
    rows = Table.of(">#", *short_names(keys).values(), *(f">{objective}" for objective in goals.objectives), "",
                    hide=[str(objective) for objective in goals.objectives[:1:-1]])
    for point, following in zip(points, [*points[1:], None], strict=True):
        if point.values:
            rows.add_row(*_row(point, best), style="bold" if point.on_front else "",
                         end_section=following is not None and _section(point) != _section(following))
    if rows.rows:
        screen.print(rows)
    for line in _remarks(points):
        screen.print(line, markup=False)


def _section(point: ParetoPoint) -> tuple[bool, bool]:
    """The part of the table that *point* belongs to: the front, what it dominates, or what does not count."""
    return point.on_front, bool(point.problem)


def _row(point: ParetoPoint, best: Sequence[float]) -> Iterator[str]:
    yield str(point.number)
    yield from map(value_text, point.outcome.settings.values())
    for at, value in enumerate(point.values):
        yield f"{number(value)}{'' if point.problem else _over(value, best[at]):>10}"
    yield _short(point) or ("on the front" if point.on_front else f"beaten by {point.beaten_by}")


def _short(point: ParetoPoint) -> str:
    """Why a point does not count, without details."""
    return point.problem.partition(": ")[0]


def _over(value: float, best: float) -> str:
    """*value* relative to the *best*: a percentage, or a multiple where that is large."""
    if value == best:
        return "best"
    if not best:
        return ""
    ratio = value / best
    return f"{number(ratio)}x" if ratio >= _MULTIPLE else f"{ratio - 1:+.1%}"


def _remarks(points: Sequence[ParetoPoint]) -> Iterator[str]:
    yield f"{sum(point.on_front for point in points)} of {len(points)} points are on the front"
    shown = [point for point in points if point.values and _short(point) != point.problem]
    for problem in dict.fromkeys(point.problem for point in shown):
        numbers = ", ".join(str(point.number) for point in shown if point.problem == problem)
        yield f"! {numbers}: {problem}"
    if few := [f"{point.number} ({point.outcome.unserved_share:.2%})" for point in points
               if point.outcome.unserved and not point.problem]:
        yield f"* rejected few enough requests to count: {', '.join(few)}; --max-rejected 0 tolerates none"
    for point in points:
        if point.problem and not point.values:
            yield f"- {_settings_text(point)}: {point.problem}"


def _settings_text(point: ParetoPoint) -> str:
    """The settings of *point*, in short."""
    settings = point.outcome.settings
    names = short_names(list(settings))
    return ", ".join(f"{names[key]} {value_text(value)}" for key, value in settings.items())


def content(scenario: str, points: Sequence[ParetoPoint], goals: Goals) -> dict[str, Any]:
    """All *points*, for a JSON file."""
    return {"scenario": scenario, "objectives": [str(objective) for objective in goals.objectives],
            "requirements": [str(requirement) for requirement in goals.required],
            "points": [{"point": point.number, "on_front": point.on_front, "beaten_by": point.beaten_by,
                        "settings": {key: _plain(value) for key, value in point.outcome.settings.items()},
                        "problem": point.problem, "summary": point.outcome.summary} for point in points]}


def save(folder: Path, title: str, points: Sequence[ParetoPoint], goals: Goals) -> None:
    """Write the front into *folder*, in place of an earlier one."""
    with (folder / "points.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(_csv_rows(points, goals.keys))
    shutil.rmtree(folder / "front", ignore_errors=True)
    (folder / "front").mkdir()
    leading = [point for point in points if point.on_front]
    for point in leading:
        (folder / "front" / _file_name(point, len(leading))).write_text(point.outcome.scenario, encoding="utf-8")
    _draw(folder / "pareto.png", title, points, goals.objectives)


def _plain(value: Any) -> Any:
    """A setting's value for a JSON file; JSON has no infinity and no dates."""
    known = isinstance(value, int | str) or (isinstance(value, float) and isfinite(value))
    return value if known else value_text(value)


def _csv_rows(points: Sequence[ParetoPoint], columns: Sequence[str]) -> Iterator[list[Any]]:
    """A row for each point, with *columns* of its summary."""
    keys = list(points[0].outcome.settings)
    yield ["point", *keys, *columns, "on_front", "beaten_by", "problem"]
    for point in points:
        summary: Mapping[str, Any] = point.outcome.summary or {}
        yield [point.number, *map(value_text, point.outcome.settings.values()),
               *map(summary.get, columns), str(point.on_front).lower(), point.beaten_by, point.problem]


def _file_name(point: ParetoPoint, count: int) -> str:
    """The point's number and settings, such as ``01-max_num_seqs=16.toml``."""
    settings = point.outcome.settings
    names = short_names(list(settings))
    words = [f"{names[key]}={value_text(value)}" for key, value in settings.items()]
    text = re.sub(r"[^A-Za-z0-9._=+-]+", "_", "-".join(words))[:_LONGEST]
    return f"{point.number:0{max(2, len(str(count)))}}-{text}.toml"


def _draw(path: Path, title: str, points: Sequence[ParetoPoint], wanted: Sequence[Objective]) -> None:
    from ksim.views.figures.studies import ParetoMark, Scale, pareto_chart

    settings = points[0].outcome.settings
    marks = [ParetoMark(point.values, point.on_front, ", ".join(map(value_text, point.outcome.settings.values())))
             for point in points if not point.problem]
    left = f"; without {len(points) - len(marks)} that cannot count" if len(marks) < len(points) else ""
    note = f"{len(points)} points, those of the front by their {', '.join(short_names(list(settings)).values())}{left}"
    scales = [Scale(objective.key, objective.maximise) for objective in wanted]
    pareto_chart(title, note, scales, marks).save(path)
