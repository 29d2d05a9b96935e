"""The map of kernel families: their distance from the roofline, and how much it differs from GPU to GPU."""

import textwrap
from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np
from attrs import frozen
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, NullLocator

from ksim.report.plots.labels import Named, name_marks
from ksim.report.plots.style import BLUE, DASHES, FAINT, GREEN, GREY, ORANGE, PLAIN, RED, canvas, grid_of

_LARGEST, _SMALLEST = 900.0, 20.0
#: Zones without a colour of their own are between safe and danger.
_COLOURS = {"safe": GREEN, "danger": RED}
_TICKS = (1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 200)
#: The lower ends of the axes.  Below 1, a kernel beats its roof, which caches make possible.
_LEAST = 0.88
#: Both axes show -1 / sqrt of their value, which leaves room for the good families.
_SCALE = (lambda x: -1 / np.sqrt(np.maximum(x, 1e-3)), lambda x: 1 / np.minimum(x, -1e-3) ** 2)


@frozen
class FamilyMark:
    """A family of kernels: eta over all GPUs, its minimum and maximum, and the family's share of the step's time."""

    name: str
    eta: float
    low: float
    high: float
    share: float


@frozen
class ZoneArea:
    """A zone: its lower bounds in eta and in spread."""

    name: str
    eta: tuple[float, float]
    spread: tuple[float, float]


def eta_figure(title: str, gpus: Sequence[str], steps: Mapping[str, Sequence[FamilyMark]],
               zones: Sequence[ZoneArea]) -> Figure:
    """The spread of eta over *gpus*, over its size; a panel for each step."""
    width = 1.5 + 5.75 * len(steps)
    figure = canvas(width, 6.4, title, "a mark for every family: its area the share of the step's time, its line from"
                                       " the least eta to the largest")
    figure.supxlabel(textwrap.fill(f"GPUs: {', '.join(gpus)}", int(13 * width)), x=0.012, ha="left", fontsize=8.5,
                     color=FAINT)
    every = [mark for marks in steps.values() for mark in marks]
    left = min([_LEAST, *(0.95 * mark.low for mark in every)])
    right = max([6.0, *(1.1 * mark.high for mark in every)])
    top = max([4.0, *(2.5 * mark.high / mark.low for mark in every)])
    grid = grid_of(figure, 1, len(steps))
    for axes, (step, marks) in zip(grid, steps.items(), strict=True):
        axes.set_title(step)
        _scales(axes, (left, right), (_LEAST, top))
        _zones(axes, zones)
        _draw(axes, marks)
    for axes, marks in zip(grid, steps.values(), strict=True):
        name_marks(axes, [Named(mark.eta, mark.high / mark.low, sqrt(_area(mark)) / 2, mark.name)
                          for mark in sorted(marks, key=lambda mark: -mark.share)])
    return figure


def _scales(axes: Axes, etas: tuple[float, float], spreads: tuple[float, float]) -> None:
    axes.set_xscale("function", functions=_SCALE)
    axes.set_yscale("function", functions=_SCALE)
    axes.set_xlim(*etas)
    axes.set_ylim(*spreads)
    for axis, (low, high) in ((axes.xaxis, etas), (axes.yaxis, spreads)):
        axis.set_major_locator(FixedLocator([tick for tick in _TICKS if low < tick < high]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(PLAIN)
    axes.set_xlabel("eta: time over the roofline's, geometric mean over GPUs")
    axes.set_ylabel("spread of eta: the largest GPU's over the smallest")
    axes.grid(False)


def _zones(axes: Axes, zones: Sequence[ZoneArea]) -> None:
    """Shade and name each zone, in the corner where marks are least likely."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for zone in zones:
        x0, x1 = max(left, zone.eta[0]), min(right, zone.eta[1])
        y0, y1 = max(bottom, zone.spread[0]), min(top, zone.spread[1])
        colour = _COLOURS.get(zone.name, ORANGE)
        axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, linewidth=0, zorder=0, color=colour,
                                 alpha=0.13 if zone.name in _COLOURS else 0.06))
        at_left, last = zone.eta[0] <= left, zone.spread[0] > bottom or zone.eta[0] <= left
        axes.annotate(zone.name, (x0 if at_left else x1, y1 if last else y0), fontsize=10, fontweight="bold",
                      xytext=(7 if at_left else -7, -7 if last else 7), textcoords="offset points", color=colour,
                      ha="left" if at_left else "right", va="top" if last else "bottom", zorder=1)
    for edge in sorted({edge for zone in zones for edge in zone.eta if left < edge < right}):
        axes.axvline(edge, color=GREY, linewidth=0.9, linestyle=DASHES, zorder=1)
    for edge in sorted({edge for zone in zones for edge in zone.spread if bottom < edge < top}):
        axes.axhline(edge, color=GREY, linewidth=0.9, linestyle=DASHES, zorder=1)


def _draw(axes: Axes, marks: Sequence[FamilyMark]) -> None:
    for mark in sorted(marks, key=lambda mark: -mark.share):
        spread = mark.high / mark.low
        axes.plot([mark.low, mark.high], [spread, spread], color=FAINT, linewidth=0.9, alpha=0.55, zorder=2)
        axes.scatter(mark.eta, spread, s=_area(mark), color=BLUE, alpha=0.8, edgecolor="white", linewidth=0.8, zorder=3)


def _area(mark: FamilyMark) -> float:
    return max(_SMALLEST, _LARGEST * mark.share)
