"""How a set-up fares as the rate rises: the share of requests within each target, and goodput, with bands.

The Pareto front between objectives: all points, and the front labelled with the settings behind it.

A number of a sweep's points over a setting or another number, with intervals where points have replications.

How a tuning went: the objective of each trial, and the best so far.

Routers side by side: a line for each, a panel for each number, and a dot for each age of the signals they see.

A figure that shows itself in a notebook.
"""

import io
import math
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

import numpy as np
from attrs import evolve, frozen
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ksim.report.plots.labels import Named, name_marks
from ksim.report.plots.style import (
    BLUE,
    DASHES,
    FAINT,
    GREY,
    INK,
    PALETTE,
    PREFIXED,
    canvas,
    grid_of,
    linear_ticks,
    percent_axis,
    write,
)

#: A value, and the ends of its interval.
Band = tuple[float, float, float]
#: Lines of several targets differ by their dashes.
_DASHED = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)))


@frozen
class Curve:
    """A set-up at several `rates`: goodput, and the attainment of each target.

    `shares` are those that targets ask for, None of a mean.  `highest` is its highest rate, if that was searched for.
    """

    name: str
    rates: Sequence[float]
    goodput: Sequence[Band]
    attainment: Mapping[str, Sequence[Band]]
    shares: Mapping[str, float | None]
    highest: Band | None = None


def capacity_figure(title: str, curves: Sequence[Curve], rate: float | None = None) -> Figure:
    """Attainment above goodput, both over the rate; *rate* is the one that was asked for."""
    figure = canvas(8.6, 6.6, f"Capacity: {title}", "Bands are 95 % intervals of the traffic; hatched is that of the"
                    " highest rate, with the model's error")
    above, below = grid_of(figure, 2, 1, heights=[1.0, 1.0], share_x=True)
    most = max((len(one.attainment) for one in curves), default=1)
    apart = most if most * len(curves) <= len(PALETTE) else 1  # a colour for each target, or for each set-up
    for place, one in enumerate(curves):
        colours = [PALETTE[(place * apart + nth % apart) % len(PALETTE)] for nth in range(most)]
        for nth, (target, bands) in enumerate(one.attainment.items()):
            named = f"{one.name}, {target}" if len(curves) < 4 else "" if nth else one.name
            _line(above, one.rates, bands, colours[nth], _DASHED[nth % len(_DASHED)], named)
        colour = INK if len(curves) == 1 else colours[0]
        _line(below, one.rates, one.goodput, colour, _DASHED[0], one.name)
        if one.highest:
            _highest(above, one, colour, named=len(curves) < 4)
    _finish(above, below, curves, rate)
    return figure


def _highest(axes: Axes, one: Curve, colour: str, named: bool) -> None:
    """The highest rate as a line, and its interval as a hatched column, which may be open: the axis ends before."""
    assert one.highest
    rate, low, high = one.highest
    end = min(high, 2 * max(*one.rates, rate))
    axes.axvspan(low, end, facecolor="none", edgecolor=colour, hatch="///", alpha=0.25, linewidth=0)
    axes.axvline(rate, color=colour, linewidth=1.4, label=f"{one.name}, highest rate" if named else None)


def _finish(above: Axes, below: Axes, curves: Sequence[Curve], rate: float | None) -> None:
    """What the axes say."""
    for share in {share for one in curves for share in one.shares.values() if share is not None}:
        above.axhline(share, color=GREY, linewidth=1.0, linestyle=DASHES)
    most = max((rate for one in curves for rate in [*one.rates, *filter(isfinite, one.highest or ())]),
               default=1.0)
    below.plot([0, most], [0, most], color=GREY, linewidth=1.0, linestyle=DASHES, label="every request")
    if rate is not None:
        for axes, label in ((above, f"{rate:g} requests/s, as asked"), (below, "")):
            axes.axvline(rate, color=FAINT, linewidth=1.0, linestyle=DASHES, label=label or None)
    percent_axis(above)
    linear_ticks(below)
    least = min((band[0] for one in curves for bands in one.attainment.values() for band in bands), default=0.0)
    above.set_ylim(max(0.0, min(least - 0.05, 0.9)), 1.01)
    below.set_ylim(0, 1.05 * most)
    below.set_xlim(0, 1.02 * most)
    above.set_title("Requests within the target")
    below.set_title("Goodput: requests/s within all targets")
    below.set_xlabel("requests/s")
    above.legend(loc="lower left")
    below.legend(loc="upper left")


def _line(axes: Axes, rates: Sequence[float], bands: Sequence[Band], colour: str, dashes: object, label: str) -> None:
    value, low, high = (np.array(column) for column in zip(*bands, strict=True))
    axes.plot(rates, value, color=colour, linestyle=dashes, marker="o", markersize=3, label=label or None)
    axes.fill_between(np.array(rates), low, high, color=colour, alpha=0.15, linewidth=0)


#: Radii in points, and the largest number of names; more would hide the marks.
_LARGE, _SMALL, _NAMED = 4.0, 2.8, 24
#: Values that differ by more than this factor are shown on a logarithmic scale, with ticks at these and their decades.
_WIDE, _TICKS = 20.0, (1.0, 2.0, 5.0)


@frozen
class Scale:
    """An objective, and whether higher is better."""

    name: str
    maximise: bool = False

    @property
    def label(self) -> str:
        return f"{self.name} ({'more' if self.maximise else 'less'} is better)"


@frozen
class ParetoMark:
    """A point: its value on each scale, and its name if it is on the front."""

    values: tuple[float, ...]
    on_front: bool
    name: str = ""


def pareto_figure(title: str, note: str, scales: Sequence[Scale], marks: Sequence[ParetoMark]) -> Figure:
    """The first objective over each other one, in one panel each; a single objective over the number of the point.

    Between two objectives, the front is the edge of a shaded area, in which every point is dominated.
    """
    if len(scales) == 1:
        return _single(title, note, scales[0], marks)
    figure = canvas(1.2 + 6.8 * (len(scales) - 1), 5.6, title, note)
    grid = grid_of(figure, 1, len(scales) - 1)
    for place, axes in enumerate(grid, 1):
        axes.set_xlabel(scales[place].label)
        axes.set_ylabel(scales[0].label)
        _scale(axes, "x", [mark.values[place] for mark in marks])
        _scale(axes, "y", [mark.values[0] for mark in marks])
        _draw(axes, marks, place)
        if len(scales) == 2 and marks:
            _pareto_line(axes, scales, marks)
    if marks:
        grid[0].legend(loc="best")
    for place, axes in enumerate(grid, 1):
        name_marks(axes, _names(marks, place))
    return figure


def _single(title: str, note: str, scale: Scale, marks: Sequence[ParetoMark]) -> Figure:
    """One objective, the best point first."""
    figure = canvas(8.0, 5.6, title, note)
    axes = grid_of(figure, 1, 1)[0]
    numbered = [evolve(mark, values=(mark.values[0], float(place))) for place, mark in enumerate(marks, 1)]
    axes.set_xlabel("point")
    axes.set_ylabel(scale.label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _scale(axes, "y", [mark.values[0] for mark in marks])
    _draw(axes, numbered, 1)
    if marks:
        axes.legend(loc="best")
    name_marks(axes, _names(numbered, 1))
    return figure


def _scale(axes: Axes, which: str, values: Sequence[float]) -> None:
    """A logarithmic axis if values differ much, else matplotlib's choice; plain numbers in both."""
    axis = getattr(axes, f"{which}axis")
    if values and min(values) > 0 and max(values) > _WIDE * min(values):
        axes.set(**{f"{which}scale": "log"})
        axis.set_major_locator(LogLocator(subs=_TICKS, numticks=99))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _draw(axes: Axes, marks: Sequence[ParetoMark], place: int) -> None:
    for on_front, radius, colour, label in ((False, _SMALL, GREY, "beaten"), (True, _LARGE, BLUE, "on the front")):
        chosen = [mark.values for mark in marks if mark.on_front is on_front]
        if chosen:
            axes.scatter([values[place] for values in chosen], [values[0] for values in chosen], s=(2 * radius) ** 2,
                         color=colour, edgecolor="white", linewidth=0.8, zorder=3 + on_front, label=label)
    axes.margins(0.08)
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # keep these ends, whatever else is drawn


def _pareto_line(axes: Axes, scales: Sequence[Scale], marks: Sequence[ParetoMark]) -> None:
    """The area that the front dominates, and its edge: between two points, it takes the worse value of both."""
    corners = sorted({mark.values for mark in marks if mark.on_front}, key=lambda values: values[1],
                     reverse=scales[1].maximise)
    x = [values[1] for values in corners for _ in range(2)]
    y = [values[0] for values in corners for _ in range(2)]
    worst_x, worst_y = axes.get_xlim()[not scales[1].maximise], axes.get_ylim()[not scales[0].maximise]
    axes.plot([*x, worst_x], [worst_y, *y], color=BLUE, linewidth=1.4, alpha=0.6, zorder=2)
    axes.fill([*x, worst_x, worst_x], [worst_y, *y, worst_y], color=BLUE, linewidth=0, alpha=0.05, zorder=0)


def _names(marks: Sequence[ParetoMark], place: int) -> list[Named]:
    """The positions of marks, and the names of those on the front; marks at the same position share a name."""
    shared: dict[tuple[float, float], list[str]] = {}
    leading = [mark for mark in marks if mark.on_front]
    for mark in leading[:_NAMED]:
        shared.setdefault((mark.values[place], mark.values[0]), []).append(mark.name)
    named = [Named(x, y, _LARGE, "; ".join(names)) for (x, y), names in shared.items()]
    return named + [Named(mark.values[place], mark.values[0], _SMALL) for mark in marks if not mark.on_front]


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


def tuning_figure(title: str, note: str, label: str, trials: Sequence[tuple[int, float, bool]],
                  maximise: bool = False) -> Figure:
    """Each of *trials* is its number, its value, and whether it counts; the line is the best of those that do."""
    figure = canvas(8.0, 5.0, title, note)
    axes = grid_of(figure, 1, 1)[0]
    axes.set_xlabel("trial")
    axes.set_ylabel(label)
    for counts, color, name in ((False, GREY, "does not count"), (True, BLUE, "counts")):
        if some := [(number, value) for number, value, counted in trials if counted is counts]:
            axes.plot(*zip(*some, strict=True), "o", color=color, markersize=4, label=name)
    if counted := [(number, value) for number, value, counts in trials if counts]:
        numbers, values = zip(*counted, strict=True)
        best = (np.maximum if maximise else np.minimum).accumulate(values)
        axes.step(numbers, best, where="post", color=BLUE, label="best so far")
    if trials:
        axes.legend(loc="best")
    return figure


#: Values that differ by more than this factor are shown on a logarithmic scale.
_ROUTERS_WIDE = 30.0


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
        _draw_routers(axes, name, panel, routers, ages)
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


def _draw_routers(axes: Axes, name: str, panel: Sequence[Dot], routers: Sequence[str], ages: Sequence[str]) -> None:
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
    _scale_ages(axes, sorted(dot.value for dot in panel))
    axes.tick_params(labelcolor=FAINT)


def _scale_ages(axes: Axes, values: Sequence[float]) -> None:
    """A linear axis, from 0 where nothing is below; a logarithmic one, linear around 0, for *values*, in order, that
    spread widely."""
    positive = [value for value in values if value > 0]
    usual = positive[len(positive) // 2] if positive else 0.0
    if usual and values[-1] > _ROUTERS_WIDE * usual:
        first, last = (math.floor(math.log10(value)) for value in (max(positive[0], -values[0]), values[-1]))
        if values[0] > 0:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=10.0 ** first)
        decades = [10.0 ** power for power in range(first, last + 1, max(1, (last - first) // 3))]
        axes.set_xticks([*([0.0] if values[0] <= 0 else []), *decades])
        axes.xaxis.set_major_formatter(PREFIXED)
        axes.xaxis.set_minor_locator(NullLocator())


#: A notebook shows each pixel as one of the page, so that the density of files would be too large.
_DPI = 80


@frozen(eq=False)
class Picture:
    """A matplotlib `figure`, which a notebook shows as its last value, and `save` writes as a PNG."""

    figure: Figure

    def save(self, path: Path | str) -> Path:
        return write(self.figure, Path(path))

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=_DPI)
        return file.getvalue()
