"""The points of `ksim pareto` on the screen: the front, what it beats, and what does not count."""

from collections.abc import Iterator, Sequence

from ksim.cli.screen import console, table
from ksim.report.wording import number
from ksim.simulation.grid import short_names, value_text
from ksim.simulation.pareto import Objective, Point

#: From this multiple of the best on, a value is shown as a multiple and not as a percentage above it.
_MULTIPLE = 2.0


def show(points: Sequence[Point], wanted: Sequence[Objective]) -> None:
    """Print a row for each point that has numbers, the reasons of those that do not count, and a line for each that
    has no numbers."""
    screen, keys = console(), list(points[0].outcome.settings)
    leading = [point.values for point in points if point.on_front]
    best = [min(column, key=objective.cost) for objective, column in zip(wanted, zip(*leading, strict=True),
                                                                        strict=False)]
    rows = table(">#", *short_names(keys).values(), *(f">{objective}" for objective in wanted), "")
    for point, following in zip(points, [*points[1:], None], strict=True):
        if point.values:
            rows.add_row(*_row(point, best), style="bold" if point.on_front else None,
                         end_section=following is not None and _section(point) != _section(following))
    if rows.row_count:
        screen.print(rows)
    for line in _remarks(points):
        screen.print(line, markup=False)


def _section(point: Point) -> tuple[bool, bool]:
    """Points of the front come first, those that do not count last."""
    return point.on_front, bool(point.problem)


def _row(point: Point, best: Sequence[float]) -> Iterator[str]:
    yield str(point.number)
    yield from map(value_text, point.outcome.settings.values())
    for at, value in enumerate(point.values):
        yield f"{number(value)}{'' if point.problem else over(value, best[at]):>10}"
    yield _short(point) or ("on the front" if point.on_front else f"beaten by {point.beaten_by}")


def _short(point: Point) -> str:
    """Why a point does not count, without what explains it."""
    return point.problem.partition(": ")[0]


def over(value: float, best: float) -> str:
    """How much more or less than the best it is: a percentage, or a multiple where that is large."""
    if value == best:
        return "best"
    if not best:
        return ""
    ratio = value / best
    return f"{number(ratio)}x" if ratio >= _MULTIPLE else f"{ratio - 1:+.1%}"


def _remarks(points: Sequence[Point]) -> Iterator[str]:
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
            yield f"- {settings_text(point)}: {point.problem}"


def settings_text(point: Point) -> str:
    """Its settings, short and in words."""
    settings = point.outcome.settings
    names = short_names(list(settings))
    return ", ".join(f"{names[key]} {value_text(value)}" for key, value in settings.items())
