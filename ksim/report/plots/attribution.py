"""The phases of requests' time as stacked bars, and the change between two runs as waterfalls."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ksim.report.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    PLAIN,
    PURPLE,
    RED,
    canvas,
    looks,
    write,
)
from ksim.report.wording import number
from ksim.results.arrays import Floats
from ksim.results.attribution import GROUPS

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
