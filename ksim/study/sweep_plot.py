"""The figure of a sweep: a number of its points over a setting or another number."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ksim.foundation.errors import UnknownName
from ksim.foundation.units import in_one_unit
from ksim.study.grid import value_text
from ksim.study.rows import SweepPoint

if TYPE_CHECKING:
    from ksim.report.plots.studies import Picture


def sweep_plot(title: str, points: Sequence[SweepPoint], x: str, y: str, by: str | None = None) -> "Picture":
    """A line over *x* for each value of *by*; points that failed, or have no such number, are left out.

    Quantities, such as "400 W", are numbers on the axis, which names their unit.

    Raises UnknownName for what is neither an axis nor a number of the runs.
    """
    from ksim.report.plots.studies import Line, Picture, sweep_figure
    from ksim.report.plots.style import looks

    _check(points, x, y, by)
    lines: dict[str, list[tuple[Any, float, float]]] = {}
    places: Sequence[float | str | None]
    places, unit = in_one_unit([point.settings.get(x, point.value(x)) for point in points]) or (
        [_place(point, x) for point in points], "")  # type: ignore[misc]
    for place, point in zip(places, points, strict=True):
        value = point.value(y)
        if place is not None and value is not None:
            name = value_text(point.settings.get(by)) if by else ""
            lines.setdefault(name, []).append((place, value, point.half_width(y)))
    if any(isinstance(place, str) for line in lines.values() for place, *_ in line):
        lines = {name: [(value_text(place), value, width) for place, value, width in line]
                 for name, line in lines.items()}
    else:
        lines = {name: sorted(line) for name, line in lines.items()}
    with looks():
        x = f"{x}, {unit}" if unit else x
        return Picture(sweep_figure(title, x, y, by or "", [Line(*line) for line in lines.items()]))


def _check(points: Sequence[SweepPoint], x: str, y: str, by: str | None) -> None:
    """Raise UnknownName unless the points have these columns."""
    axes = list(dict.fromkeys(key for point in points for key in point.settings))
    numbers = list(dict.fromkeys(key for point in points for row in point.rows for key in row.numbers))
    for key, known in ((x, axes + numbers), (y, numbers), *([(by, axes)] if by else [])):
        if key not in known:
            raise UnknownName("column of the sweep", key, known)


def _place(point: SweepPoint, x: str) -> float | str | None:
    """Where a point is on the x axis, whose values have no unit in common: its number, or the text of its setting."""
    value = point.settings.get(x, point.value(x))
    plain = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return value if plain else value_text(value)
