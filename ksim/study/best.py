"""What came out of a study in a few lines: the best point by each of a few numbers, and what failed."""

import math
from collections.abc import Iterator, Sequence

from ksim.report.formats import html_block, html_table
from ksim.report.tables import Table
from ksim.report.wording import number
from ksim.study.grid import short_names
from ksim.study.means import SweepPoint, points_of
from ksim.study.objectives import Objective
from ksim.study.pareto import rank
from ksim.study.rows import FAILED, NOT_RUN, Row

#: What a person asks first: how long users wait, how much the GPUs do, and what that takes.
SHOWN = ("p99_ttft_ms", "p99_tpot_ms", "median_e2el_ms", "max:output_throughput", "joules_per_million_tokens",
         "usd_per_million_tokens")
#: More points than these make a page too long; `Sweep.to_pandas` has all.
_MOST = 20


def best(points: Sequence[SweepPoint]) -> Table:
    """The best point by each number that is `SHOWN`; points that did not keep up with their load do not count."""
    keys, rows = _axes(points), []
    for objective in map(Objective.parse, SHOWN):
        ranked = rank([point.outcome for point in points], [objective])
        if ranked and ranked[0].on_front:
            point = next(point for point in points if point.outcome is ranked[0].outcome)
            rows.append((str(objective), _text(point, objective.key), str(point.number), *point.texts(keys)))
    return Table.of("best by", ">value", ">point", *short_names(keys).values(), rows=rows)


def first(points: Sequence[SweepPoint]) -> Table:
    """The first points, with the same numbers."""
    axes, keys = _axes(points), [text.removeprefix("max:") for text in SHOWN]
    keys = [key for key in keys if any(point.value(key) is not None for point in points)]
    rows = [(str(point.number), *point.texts(axes), *(_text(point, key) for key in keys), point.outcome.problem)
            for point in points[:_MOST]]
    return Table.of(">point", *short_names(axes).values(), *(f">{key}" for key in keys), "", rows=rows)


def remarks(rows: Sequence[Row]) -> Iterator[str]:
    """How many runs there are, how many failed and why, and how many were not run."""
    replications = max((row.replication for row in rows), default=0) + 1
    times = f", {replications} replications of each" if replications > 1 else ""
    yield f"{_counted(len(rows), 'run')} of {_counted(len({row.point for row in rows}), 'point')}{times}"
    problems = [row.problem for row in rows if row.status == FAILED]
    for problem in dict.fromkeys(problems):
        yield f"{_counted(problems.count(problem), 'run')} failed: {problem}"
    if left := sum(row.status == NOT_RUN for row in rows):
        yield f"{_counted(left, 'run')} not run"


def sweep_html(title: str, rows: Sequence[Row]) -> str:
    """A study in a notebook: the best points, the first ones, and what failed."""
    points = points_of(rows)
    more = f"and {len(points) - _MOST} more points" if len(points) > _MOST else ""
    tables = [html_table(table) for table in (best(points), first(points))]
    return html_block(title, *tables, more, *remarks(rows))


def _axes(points: Sequence[SweepPoint]) -> list[str]:
    return list(dict.fromkeys(key for point in points for key in point.settings))


def _text(point: SweepPoint, key: str) -> str:
    """A number with its interval, if there is one."""
    value = point.value(key)
    spread = math.nan if value is None else point.half_width(key)
    return number(value) + ("" if math.isnan(spread) else f" ± {number(spread)}")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
