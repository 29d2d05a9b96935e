"""Routers side by side: a line for each, a panel for each number, and a dot for each age of the signals they see."""

import math
from collections.abc import Mapping, Sequence

from attrs import frozen
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ksim.report.plots.style import FAINT, GREY, PALETTE, PREFIXED, canvas, grid_of

#: Values that differ by more than this factor are shown on a logarithmic scale.
_WIDE = 30.0


@frozen
class Dot:
    """A number of a router with signals of some `age`, and half the width of its interval or not a number.

    It is drawn so far below the router's line as its `lane` says, in lines.
    """

    router: str
    age: str
    value: float
    half_width: float = math.nan
    lane: float = 0.0


def routers_figure(title: str, panels: Mapping[str, Sequence[Dot]]) -> Figure:
    """The *panels* by their titles; the first router is at the top of each."""
    dots = [dot for panel in panels.values() for dot in panel]
    routers, ages = list(dict.fromkeys(dot.router for dot in dots)), list(dict.fromkeys(dot.age for dot in dots))
    columns = min(3, max(1, len(panels)))
    rows = -(-len(panels) // columns)
    lanes = len({dot.lane for dot in dots})
    figure = canvas(11.0, 1.5 + rows * (0.8 + (0.2 + 0.04 * lanes) * max(3, len(routers))), title, _note(panels, ages))
    grid = grid_of(figure, rows, columns)
    for place, (axes, (name, panel)) in enumerate(zip(grid, panels.items(), strict=False)):
        _draw(axes, name, panel, routers, ages)
        axes.tick_params(axis="y", labelleft=place % columns == 0)
    for axes in grid[len(panels):]:
        axes.set_visible(False)
    if len(ages) > 1:
        figure.legend(*grid[0].get_legend_handles_labels(), title="age of signals", loc="outside lower center",
                      ncols=len(ages))
    return figure


def _note(panels: Mapping[str, Sequence[Dot]], ages: Sequence[str]) -> str:
    """What the colours are, and what a regret below 0 is where there is one."""
    said = [f"Colours are ages of signals: {', '.join(ages)}"] if len(ages) > 1 else []
    if any(dot.value < 0 for name, panel in panels.items() if "regret" in name for dot in panel):
        said.append("a regret below 0: first tokens came sooner than with omniscient, which minimises last tokens")
    return "; ".join(said)


def _draw(axes: Axes, name: str, panel: Sequence[Dot], routers: Sequence[str], ages: Sequence[str]) -> None:
    for age in ages:
        mine = [dot for dot in panel if dot.age == age]
        widths = [0.0 if math.isnan(dot.half_width) else dot.half_width for dot in mine]
        axes.errorbar([dot.value for dot in mine], [routers.index(dot.router) + dot.lane for dot in mine],
                      xerr=widths if any(widths) else None, linestyle="none", marker="o", markersize=5, capsize=2,
                      alpha=0.85, color=PALETTE[ages.index(age) % len(PALETTE)], label=age)
    for place in range(1, len(routers), 2):
        axes.axhspan(place - 0.5, place + 0.5, color=GREY, alpha=0.10, linewidth=0, zorder=0)
    axes.grid(visible=False, axis="y")
    axes.set_title(name)
    axes.set_yticks(range(len(routers)), routers)
    axes.set_ylim(len(routers) - 0.5, -0.5)
    _scale(axes, sorted(dot.value for dot in panel))
    axes.tick_params(labelcolor=FAINT)


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """A linear axis, from 0 where nothing is below; a logarithmic one, linear around 0, for *values*, in order, that
    spread widely."""
    positive = [value for value in values if value > 0]
    usual = positive[len(positive) // 2] if positive else 0.0
    if usual and values[-1] > _WIDE * usual:
        first, last = (math.floor(math.log10(value)) for value in (max(positive[0], -values[0]), values[-1]))
        if values[0] > 0:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=10.0 ** first)
        decades = [10.0 ** power for power in range(first, last + 1, max(1, (last - first) // 3))]
        axes.set_xticks([*([0.0] if values[0] <= 0 else []), *decades])
        axes.xaxis.set_major_formatter(PREFIXED)
        axes.xaxis.set_minor_locator(NullLocator())
