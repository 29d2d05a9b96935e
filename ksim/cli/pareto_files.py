"""What `ksim pareto` writes: all points as a table, the front as scenarios and as a figure."""

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from ksim.foundation.errors import ConfigError
from ksim.report import run_directory
from ksim.simulation.grid import short_names, value_text
from ksim.simulation.pareto import Objective, Point
from ksim.simulation.requirement import Requirement

#: What tells the folder of an earlier front from others.
MARKS = ("points.csv", "pareto.png")
#: Letters of a file's name, at most: file systems take some 255.
_LONGEST = 120


def check(folder: Path | None, json_file: Path | None, force: bool) -> None:
    """Raise ConfigError unless both can be written: worth knowing before the work."""
    if folder is not None:
        run_directory.check(folder.resolve(), MARKS, force)
    if json_file is not None and (json_file.is_dir() or not os.access(json_file.resolve().parent, os.W_OK)):
        raise ConfigError(str(json_file), "cannot be written: name a file in a directory that may be written to")


def content(scenario: str, points: Sequence[Point], wanted: Sequence[Objective],
            required: Sequence[Requirement] = ()) -> dict[str, Any]:
    """All of *points*, as JSON has it."""
    return {"scenario": scenario, "objectives": [str(objective) for objective in wanted],
            "requirements": [str(requirement) for requirement in required],
            "points": [{"point": point.number, "on_front": point.on_front, "beaten_by": point.beaten_by,
                        "settings": {key: _plain(value) for key, value in point.outcome.settings.items()},
                        "problem": point.problem, "summary": point.outcome.summary} for point in points]}


def save(folder: Path, title: str, points: Sequence[Point], wanted: Sequence[Objective],
         required: Sequence[Requirement] = ()) -> None:
    """Write *folder* in the place of an earlier one, whole or not at all; raises ConfigError."""
    columns = list(dict.fromkeys([*(each.key for each in wanted), *(each.key for each in required)]))
    with run_directory.replacing(folder.resolve(), MARKS) as new:
        with (new / "points.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(_table(points, columns))
        (new / "front").mkdir()
        leading = [point for point in points if point.on_front]
        for point in leading:
            (new / "front" / _file_name(point, len(leading))).write_text(point.outcome.scenario, encoding="utf-8")
        _draw(new / "pareto.png", title, points, wanted)


def _plain(value: Any) -> Any:
    """A setting's value as JSON can have it, which has no infinity and no dates."""
    known = isinstance(value, int | str) or (isinstance(value, float) and isfinite(value))
    return value if known else value_text(value)


def _table(points: Sequence[Point], columns: Sequence[str]) -> Iterator[list[Any]]:
    """A row for each point, with these numbers of its summary as *columns*."""
    keys = list(points[0].outcome.settings)
    yield ["point", *keys, *columns, "on_front", "beaten_by", "problem"]
    for point in points:
        summary: Mapping[str, Any] = point.outcome.summary or {}
        yield [point.number, *map(value_text, point.outcome.settings.values()),
               *map(summary.get, columns), str(point.on_front).lower(), point.beaten_by, point.problem]


def _file_name(point: Point, count: int) -> str:
    """``01-max_num_seqs=16.toml``: its number and its settings."""
    settings = point.outcome.settings
    names = short_names(list(settings))
    words = [f"{names[key]}={value_text(value)}" for key, value in settings.items()]
    text = re.sub(r"[^A-Za-z0-9._=+-]+", "_", "-".join(words))[:_LONGEST]
    return f"{point.number:0{max(2, len(str(count)))}}-{text}.toml"


def _draw(path: Path, title: str, points: Sequence[Point], wanted: Sequence[Objective]) -> None:
    from ksim.report.plots.pareto import ParetoMark, Scale, pareto_figure
    from ksim.report.plots.style import looks, write

    settings = points[0].outcome.settings
    marks = [ParetoMark(point.values, point.on_front, ", ".join(map(value_text, point.outcome.settings.values())))
             for point in points if not point.problem]
    left = f"; without {len(points) - len(marks)} that cannot count" if len(marks) < len(points) else ""
    note = f"{len(points)} points, those of the front by their {', '.join(short_names(list(settings)).values())}{left}"
    scales = [Scale(objective.key, objective.maximise) for objective in wanted]
    with looks():
        write(pareto_figure(title, note, scales, marks), path)
