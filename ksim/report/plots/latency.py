"""Latency distributions: the share of requests or tokens within each latency.

The phases of requests' time as stacked bars, and the change between two runs as waterfalls.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import frozen
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ksim.report.plots.style import (
    BLUE,
    DASHES,
    FAINT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    PLAIN,
    PURPLE,
    RED,
    Margins,
    canvas,
    grid_of,
    linear_ticks,
    log_axis,
    looks,
    percent_axis,
    reach,
    write,
)
from ksim.report.wording import UP, number, percent
from ksim.results.attribution import GROUPS
from ksim.results.history import History
from ksim.results.numbers import LatencyTargets, Summary
from ksim.results.steps import Floats

#: Points of a curve, and the number of values from which it is drawn if there are many more.
_POINTS, _VALUES = np.linspace(0, 1, 201), 100_000
#: Above this ratio between the slowest and the fastest, a linear axis would hide one of them.
_WIDE = 25.0
#: Share of the width that the label of the 99th percentile needs.
_LABEL = 0.25


@frozen(eq=False)
class _Panel:
    """A latency: its values and target in ms, and what each value belongs to.

    `name` is the name in keys of the summary.
    """

    title: str
    name: str
    values: Floats
    limit: float | None
    things: str = "requests"


def latency_figure(history: History, limits: LatencyTargets, summary: Summary, title: str = "Latency") -> Figure:
    """Cumulative distributions of TTFT, TPOT, ITL and end-to-end latency of the completed requests."""
    requests, done = history.requests, history.requests.completed
    count, tokens = int(done.sum()), int(requests.output[done].sum())
    figure = canvas(10, 7, title, f"{count:,} completed request{'s' if count > 1 else ''}, {tokens:,} output tokens",
                    fixed=True)
    panels = (
        _Panel("Time to first token (TTFT)", "ttft", requests.ttft[done], limits.ttft),
        _Panel("Time per output token (TPOT)", "tpot", requests.tpot[done & (requests.output > 1)], limits.tpot),
        _Panel("Between two tokens (ITL)", "itl", requests.gaps_of(done), None, "gaps"),
        _Panel("Arrival to last token (E2EL)", "e2el", requests.e2e[done], limits.e2el),
    )
    grid = grid_of(figure, 2, 2, margins=Margins(left=0.85, columns=0.95, rows=0.95))
    for axes, panel in zip(grid, panels, strict=True):
        axes.set_title(panel.title)
        axes.set_ylabel(f"share of {panel.things}")
        axes.set_xlabel("milliseconds")
        linear_ticks(axes)
        percent_axis(axes, full=True)
        if len(panel.values):
            _distribution(axes, panel, [summary[f"p{share}_{panel.name}_ms"] for share in (50, 90, 99)])
    return figure


def _distribution(axes: Axes, panel: _Panel, marked: list[float]) -> None:
    few = np.sort(panel.values[:: -(-len(panel.values) // _VALUES)])
    quantiles = 1e3 * np.interp(_POINTS * (len(few) - 1), np.arange(len(few)), few)
    # The largest of all values, drawn or not.
    high = 1e3 * reach(np.append(few, panel.values.max()))
    _axis(axes, quantiles, high, marked[-1], panel.limit)
    right = axes.get_xlim()[1]
    curve = np.append(quantiles, max(right, quantiles[-1])), np.append(_POINTS, 1.0)
    axes.plot(*curve, color=BLUE)
    axes.fill_between(*curve, color=BLUE, alpha=0.10, linewidth=0)
    for value, share in zip(marked, (50, 90, 99), strict=True):
        if value <= right:
            axes.plot(value, share / 100, "o", color=BLUE, markersize=5, markeredgecolor="white", zorder=3)
            _write(axes, f"p{share}  {number(value)}", (value, share / 100))
    _notes(axes, panel, right, [(share, value) for share, value in zip((50, 90, 99), marked, strict=True)
                                if value > right])


def _axis(axes: Axes, quantiles: Floats, high: float, tail: float, limit: float | None) -> None:
    """An axis from the fastest to the slowest, with room for the label of the 99th percentile and for a target nearby.
    """
    low, shown = float(quantiles[2]), min(tail, high)
    if limit is not None and 1e3 * limit <= 2 * high:
        high = max(high, 1.05e3 * limit)
    if low > 0 and high / low > _WIDE:
        left = 0.8 * float(quantiles[0]) or 0.5 * low
        log_axis(axes, left, max(1.1 * high, shown * (shown / left) ** (_LABEL / (1 - _LABEL))), room=7)
    else:
        axes.set_xlim(0, max(1.04 * high, shown / (1 - _LABEL)) or 1)


def _notes(axes: Axes, panel: _Panel, right: float, beyond: list[tuple[int, float]]) -> None:
    """The target, and the number of values beyond the axis; at the lower right, under the curve."""
    lines = []
    if panel.limit is not None:
        axes.axvline(1e3 * panel.limit, color=RED, linewidth=1.2, linestyle=DASHES)
        met = float((panel.values <= panel.limit).mean())
        lines.append((f"target {number(1e3 * panel.limit)} ms: met by {percent(met)}", RED))
    if outside := int((panel.values > 1e-3 * right).sum()):
        lines.append((f"{outside:,} beyond the axis, up to {number(1e3 * float(panel.values.max()), UP)} ms", FAINT))
    lines += [(f"p{share}  {number(value)}, beyond the axis", INK) for share, value in beyond]
    for place, (text, colour) in enumerate(lines):
        axes.text(0.98, 0.04 + 0.075 * place, text, transform=axes.transAxes, ha="right", fontsize=8.5, color=colour,
                  bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}, zorder=4)


def _write(axes: Axes, text: str, place: tuple[float, float]) -> None:
    axes.annotate(text, place, xytext=(7, -4), textcoords="offset points", ha="left", va="top", fontsize=8.5, color=INK,
                  bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.6, "pad": 0.5}, zorder=4)


#: Colours of the groups of phases.
COLOURS = dict(zip(GROUPS, (
    "#4a3f55", "#a38cb5", GREY, RED, "#2f7f86", RED, BLUE, ORANGE, "#f0bf8d", "#c9a66b", "#8f2f27", PALETTE[5],
    "#1f5f64", "#b9c7de", GREEN, PALETTE[7], FAINT, "#7a5195", PURPLE, PALETTE[6]), strict=True))


def plot_breakdown(path: Path, title: str, note: str, panels: Mapping[str, Mapping[str, Floats]],
                   groups: Sequence[str]) -> Path:
    """Draw `breakdown_figure` into *path*, a PNG."""
    with looks():
        return write(breakdown_figure(title, note, panels, groups), path)


def plot_changes(path: Path, title: str, note: str, panels: Sequence[Mapping[str, tuple[Floats, Floats]]],
                 groups: Sequence[str]) -> Path:
    """Draw `changes_figure` into *path*, a PNG."""
    with looks():
        return write(changes_figure(title, note, panels, groups), path)


def breakdown_figure(title: str, note: str, panels: Mapping[str, Mapping[str, Floats]],
                     groups: Sequence[str]) -> Figure:
    """One panel for each metric, with an axis of its own: bars by name, with the seconds of each of *groups*."""
    bars = sum(map(len, panels.values()))
    figure = canvas(10, 1.6 + 0.75 * len(panels) + 0.42 * bars, title, note)
    rows = figure.subplots(len(panels), 1, squeeze=False, height_ratios=[0.6 + len(each) for each in panels.values()])
    for axes, (name, each) in zip(rows[:, 0], panels.items(), strict=True):
        axes.set_title(name)
        _stack(axes, each, groups)
    handles, labels = rows[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    rows[-1, 0].set_xlabel("milliseconds")
    return figure


def _stack(axes: Axes, bars: Mapping[str, Floats], groups: Sequence[str]) -> None:
    places = np.arange(len(bars))
    seconds = 1e3 * np.array(list(bars.values())).reshape(len(bars), len(groups))
    left = np.cumsum(seconds, axis=1) - seconds
    for group, width, begin in zip(groups, seconds.T, left.T, strict=True):
        axes.barh(places, width, left=begin, height=0.7, color=COLOURS[group], label=group, edgecolor="white",
                  linewidth=0.5)
    totals = seconds.sum(axis=1)
    for place, total in zip(places.tolist(), totals.tolist(), strict=True):
        axes.annotate(number(total), (total, place), xytext=(4, 0), textcoords="offset points", va="center",
                      fontsize=8.5, color=INK)
    axes.set_yticks(places, list(bars))
    axes.invert_yaxis()
    _milliseconds(axes, 1.12 * float(totals.max(initial=0.0)), ticks=8)


def changes_figure(title: str, note: str, panels: Sequence[Mapping[str, tuple[Floats, Floats]]],
                   groups: Sequence[str]) -> Figure:
    """A row of panels for each metric: from one run's total to the other's, group by group."""
    widest = max(map(len, panels))
    figure = canvas(3.7 * widest + 1.4, 3.2 * len(panels) + 0.8, title, note)
    grid = figure.subplots(len(panels), widest, squeeze=False, sharey=True)
    for row, each in zip(grid, panels, strict=True):
        for axes, (name, (before, after)) in zip(row, each.items(), strict=False):
            axes.set_title(name)
            _waterfall(axes, 1e3 * before, 1e3 * after, groups)
        for axes in row[len(each):]:
            axes.set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("milliseconds")
    grid[0, 0].invert_yaxis()
    return figure


def _waterfall(axes: Axes, before: Floats, after: Floats, groups: Sequence[str]) -> None:
    """Steps from the sum of *before* to that of *after*; red where time is added, green where it is saved."""
    changes, first, last = after - before, float(before.sum()), float(after.sum())
    reached = first + np.cumsum(changes)
    places = np.arange(len(groups) + 2)
    axes.barh(places[[0, -1]], [first, last], height=0.7, color=GREY)
    axes.barh(places[1:-1], changes, left=reached - changes, height=0.7,
              color=[RED if change > 0 else GREEN for change in changes.tolist()])
    marks = [first, *np.maximum(reached, reached - changes).tolist(), last]
    texts = [number(first), *(_signed(change) for change in changes.tolist()), number(last)]
    for place, mark, text in zip(places.tolist(), marks, texts, strict=True):
        axes.annotate(text, (mark, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8,
                      color=INK)
    axes.set_yticks(places, ["first run", *groups, "second run"])
    _milliseconds(axes, 1.25 * max(marks), ticks=5)


def _milliseconds(axes: Axes, most: float, ticks: int) -> None:
    axes.set_xlim(0, most or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(ticks))
    axes.xaxis.set_major_formatter(PLAIN)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def _signed(change: float) -> str:
    return "" if abs(change) < 5e-4 else f"{'+' if change > 0 else '-'}{number(abs(change))}"
