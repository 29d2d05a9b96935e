"""The points of `ksim pareto` on the screen: the front, what it beats, and what could not be judged."""

from collections.abc import Iterator, Sequence

from ksim.cli.screen import console, table
from ksim.results.wording import number
from ksim.studies.grid import short_names, value_text
from ksim.studies.pareto import Objective, Point

#: What marks latencies that depend on how long the run was, as in a run's report.
_GROWING = " !"


def show(points: Sequence[Point], wanted: Sequence[Objective]) -> None:
    """Print a row for each point that has been judged, and a line for each that has not."""
    screen, keys = console(), list(points[0].outcome.settings)
    best = [min((point.values[at] for point in points if point.on_front), key=objective.cost)
            for at, objective in enumerate(wanted)]
    rows = table(">#", *short_names(keys).values(), *(f">{objective}" for objective in wanted), "")
    for point in points:
        if point.values:
            rows.add_row(*_row(point, best), style="bold" if point.on_front else None, end_section=_last(point, points))
    screen.print(rows)
    for line in _remarks(points):
        screen.print(line, markup=False)


def _row(point: Point, best: Sequence[float]) -> Iterator[str]:
    yield str(point.number)
    yield from map(value_text, point.outcome.settings.values())
    for value, least in zip(point.values, best, strict=True):
        yield f"{number(value)}{_over(value, least):>10}"
    growing = _GROWING if point.outcome.summary and point.outcome.summary["saturated"] else ""
    yield ("on the front" if point.on_front else f"beaten by {point.beaten_by}") + growing


def _over(value: float, best: float) -> str:
    """How much more or less than the best it is."""
    if value == best:
        return "best"
    return f"{value / best - 1:+.1%}" if best else ""


def _last(point: Point, points: Sequence[Point]) -> bool:
    """Whether it is the last of the front."""
    return point.number == sum(other.on_front for other in points)


def _remarks(points: Sequence[Point]) -> Iterator[str]:
    judged = [point for point in points if point.values]
    yield f"{sum(point.on_front for point in judged)} of {len(points)} points are on the front"
    if any(point.outcome.summary and point.outcome.summary["saturated"] for point in judged):
        yield f"{_GROWING.strip()} the queue kept growing: TTFT and E2EL there depend on how long the run was"
    for point in points[len(judged):]:
        yield f"- {settings_text(point)}: {point.problem}"


def settings_text(point: Point) -> str:
    """Its settings, short and in words."""
    settings = point.outcome.settings
    names = short_names(list(settings))
    return ", ".join(f"{names[key]} {value_text(value)}" for key, value in settings.items())
