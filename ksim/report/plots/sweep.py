"""A number of a sweep's points over a setting or another number, with intervals where points have replications."""

import math
from collections.abc import Sequence

from attrs import frozen
from matplotlib.figure import Figure

from ksim.report.plots.style import PALETTE, canvas, grid_of


@frozen
class Line:
    """Points of a line: (place on the x axis, value, half the width of its interval or not a number)."""

    name: str
    points: Sequence[tuple[float | str, float, float]]


def sweep_figure(title: str, x: str, y: str, by: str, lines: Sequence[Line]) -> Figure:
    """The *lines*, one for each value of *by*, if that is a name."""
    figure = canvas(8.0, 5.0, title, f"{y} over {x}{f', by {by}' if by else ''}")
    axes = grid_of(figure, 1, 1)[0]
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for place, line in enumerate(lines):
        places, values, widths = zip(*line.points, strict=True)
        known = [0.0 if math.isnan(width) else width for width in widths]
        axes.errorbar(places, values, yerr=known if any(known) else None, color=PALETTE[place % len(PALETTE)],
                      marker="o", markersize=5, capsize=3, label=line.name)
    if by:
        axes.legend(title=by)
    return figure
