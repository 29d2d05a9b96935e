"""The roofline: how close each kernel comes to the GPU's peaks of arithmetic and memory.

The map of kernel families: their distance from the roofline, and how much it differs from GPU to GPU.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan, sqrt
from typing import Any

import numpy as np
from attrs import frozen
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, NullLocator

from ksim.flow.events import EngineBuilt
from ksim.flow.steps import BOUNDS
from ksim.report.plots.labels import Named, name_marks
from ksim.report.plots.style import (
    BLUE,
    BOUND_COLOURS,
    DASHES,
    FAINT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PLAIN,
    PREFIXED,
    RED,
    Margins,
    beside,
    canvas,
    decades,
    grid_of,
)
from ksim.report.wording import percent
from ksim.results.history import History
from ksim.results.kernels import KernelUsage, work_columns
from ksim.results.steps import Bools

_LARGEST, _SMALLEST = 900.0, 14.0
_NAMES = 2
#: Kernels of a run within this distance, in decades, share one label; kernels of a step only if they coincide.
_NEAR, _SAME = 0.1, 0.02


@frozen
class Roof:
    """Peaks of one GPU, or of one of its number formats: FLOP/s and bytes/s.  It needs a name if there are several."""

    name: str
    flops: float
    bandwidth: float


@frozen
class Mark:
    """A kernel: FLOP per byte, FLOP/s with the ends of its interval (nan if unknown), time and bound."""

    label: str
    intensity: float
    rate: float
    seconds: float
    bound: str
    low: float = nan
    high: float = nan


def draw_roofs(axes: Axes, roofs: Sequence[Roof], marks: Sequence[Mark], room: float = 100.0) -> None:
    """Draw the peaks of arithmetic and memory, and leave *room* to the right of everything."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP per byte")
    axes.set_ylabel("FLOP/s of one GPU")
    ridge = max(roof.flops / roof.bandwidth for roof in roofs)
    left = min([mark.intensity for mark in marks] + [ridge / 100]) / 4
    right = max([mark.intensity for mark in marks] + [ridge]) * room
    for roof in roofs:
        intensity = np.array([left, roof.flops / roof.bandwidth, right])  # straight lines on logarithmic scales
        axes.plot(intensity, np.minimum(roof.flops, roof.bandwidth * intensity), color=INK, linewidth=1.3)
        name = f"{roof.name}, " if roof.name else ""
        axes.annotate(f"{name}{roof.flops / 1e12:,.0f} TFLOP/s", (right, roof.flops), xytext=(0, 4), ha="right",
                      textcoords="offset points", fontsize=8.5, color=FAINT)
    for bandwidth in sorted({roof.bandwidth for roof in roofs}):
        middle = (left * min(roof.flops for roof in roofs) / bandwidth) ** 0.5
        axes.annotate(f"{bandwidth / 1e12:.1f} TB/s", (middle, bandwidth * middle), xytext=(-7, 3), ha="right",
                      textcoords="offset points", fontsize=8.5, color=FAINT)
    axes.set_xlim(left, right)
    lowest = min([mark.rate for mark in marks] + [roof.bandwidth * left for roof in roofs])
    bottom, top = lowest / 6, 3 * max(roof.flops for roof in roofs)
    axes.set_ylim(bottom, top)
    for axis, ticks, form in ((axes.xaxis, decades(left, right, 8), PLAIN),
                              (axes.yaxis, decades(bottom, top, 8), PREFIXED)):
        axis.set_major_locator(ticks)
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(form)


def draw_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    """Draw each kernel: its area is its share of the time, its colour is its bound."""
    total = sum(mark.seconds for mark in marks)
    for mark in _longest_first(marks):
        colour = BOUND_COLOURS[mark.bound]
        axes.scatter(mark.intensity, mark.rate, s=_area(mark, total), alpha=0.8, color=colour, edgecolor="white",
                     linewidth=0.8, zorder=3)
        if not isnan(mark.low):
            axes.plot([mark.intensity] * 2, [mark.low, mark.high], color=FAINT, linewidth=0.9, marker="_", markersize=5,
                      zorder=2.5)


def label_marks(axes: Axes, marks: Sequence[Mark], near: float) -> None:
    """Name the kernels; those within *near*, in decades, share one label."""
    total = sum(mark.seconds for mark in marks)
    named = []
    for cluster in _clusters(_longest_first(marks), near):
        for place, mark in enumerate(cluster):
            text = "" if place else _names(cluster)
            named.append(Named(mark.intensity, mark.rate, sqrt(_area(mark, total)) / 2, text))
    name_marks(axes, named)


def draw_bounds(axes: Axes, marks: Sequence[Mark]) -> None:
    """Draw a legend of the bounds that occur in *marks*."""
    bounds = [bound for bound in BOUNDS if any(mark.bound == bound for mark in marks)]
    dots = [Line2D([], [], marker="o", linestyle="", markersize=8, color=BOUND_COLOURS[b], label=b) for b in bounds]
    axes.legend(handles=dots, loc="lower right", title="limited by", alignment="left")


def _area(mark: Mark, total: float) -> float:
    return max(_SMALLEST, _LARGEST * mark.seconds / total)


def _longest_first(marks: Sequence[Mark]) -> list[Mark]:
    return sorted(marks, key=lambda mark: (-mark.seconds, mark.label))


def _names(cluster: Sequence[Mark]) -> str:
    names = list(dict.fromkeys(mark.label for mark in cluster))
    return ", ".join(names[:_NAMES]) + (f" +{len(names) - _NAMES}" if len(names) > _NAMES else "")


def _clusters(marks: Sequence[Mark], near: float) -> list[list[Mark]]:
    """Marks that share a label, the longest of each cluster first."""
    clusters: list[list[Mark]] = []
    for mark in marks:
        close = next((cluster for cluster in clusters if _distance(mark, cluster[0]) < near), None)
        clusters.append([mark]) if close is None else close.append(mark)
    return clusters


def _distance(one: Mark, other: Mark) -> float:
    """The distance of two marks, in decades."""
    return float(max(abs(np.log10(one.intensity / other.intensity)), abs(np.log10(one.rate / other.rate))))


@frozen
class Panel:
    """One step: what it computes, its kernels that fit on a roofline, and their share of its time.

    It may have `roofs` of its own, those of the GPUs that ran it.
    """

    title: str
    marks: Sequence[Mark]
    share: float = 1.0
    roofs: Sequence[Roof] = ()


def roofline_figure(history: History, usage: KernelUsage, title: str = "Roofline") -> Figure:
    """Rooflines of a run, one for steps that only decode and one for steps with prompts; with pools, one for each.

    A mark for each kernel shows the FLOP/s that it achieved over its FLOP per byte.
    """
    note = ("a mark for every kernel: its area the share of GPU time, its colour what limits it; marks in one place"
            " share a label")
    panels = [Panel(title, list(_marks(work_columns(usage, which))), roofs=_roofs(engines))
              for title, which, engines in _kinds(history)]
    figure = canvas(max(10, 5 * len(panels)), 5.4, title, note, fixed=True)
    _draw(figure, _roofs(history.engines), panels, margins=Margins(left=0.85, columns=0.9))
    return figure


def _roofs(engines: Sequence[EngineBuilt]) -> list[Roof]:
    """The peaks of the GPUs of *engines*; one alone has no name, which is in the title."""
    roofs = sorted({(e.gpu, e.peak_flops, e.peak_bandwidth) for e in engines})
    return [Roof("" if len(roofs) == 1 else name, *peaks) for name, *peaks in roofs]


def _kinds(history: History) -> Iterator[tuple[str, Bools, Sequence[EngineBuilt]]]:
    """The title of each panel, its steps, and the engines that have roofs of their own in it."""
    if history.pools:
        for place, name in enumerate(history.pools):
            engines = [built for built in history.engines if built.pool == name]
            yield f"Steps of pool {name}", history.pool[history.steps.engine] == place, engines
    else:
        with_prompts = history.steps.prefills > 0
        yield from (("Decode steps", ~with_prompts, ()), ("Steps with prompt tokens", with_prompts, ()))


def step_roofline_figure(title: str, roofs: Sequence[Roof], panels: Sequence[Panel]) -> Figure:
    """Rooflines of steps, a panel for each: FLOP/s of each kernel over its FLOP per byte."""
    note = "a mark for every kernel: its area the share of the step's time, its colour what limits it"
    if any(mark.low == mark.low for panel in panels for mark in panel.marks):
        note += ", its bar the 90 % interval"
    figure = canvas(1.5 + 5.75 * len(panels), 6.2, title, note)
    _draw(figure, roofs, panels, near=_SAME, room=8.0)
    return figure


def _draw(figure: Figure, roofs: Sequence[Roof], panels: Sequence[Panel], near: float = _NEAR,
          room: float = 100.0, margins: Margins | None = None) -> None:
    every = [mark for panel in panels for mark in panel.marks]
    grid = grid_of(figure, 1, len(panels), margins=margins)
    for axes, panel in zip(grid, panels, strict=True):
        axes.set_title(panel.title)
        if panel.share < 0.9995:
            beside(axes, f"drawn: {percent(panel.share)} of its time")
        draw_roofs(axes, panel.roofs or roofs, every, room)
        draw_marks(axes, panel.marks)
    draw_bounds(grid[-1], every)
    for axes, panel in zip(grid, panels, strict=True):
        label_marks(axes, panel.marks, near)


def _marks(columns: dict[str, Any]) -> Iterator[Mark]:
    """The kernels with both FLOP and bytes, with their intensity and rate."""
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        if row["flops"] > 0 and row["bytes"] > 0 and row["gpu_seconds"] > 0:
            yield Mark(row["label"], row["flops"] / row["bytes"], row["flops"] / row["gpu_seconds"], row["seconds"],
                       max(BOUNDS, key=lambda name: row[f"{name}_share"]))


_LARGEST_DOT, _SMALLEST_DOT = 900.0, 20.0
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
        _draw_dots(axes, marks)
    for axes, marks in zip(grid, steps.values(), strict=True):
        name_marks(axes, [Named(mark.eta, mark.high / mark.low, sqrt(_dot_area(mark)) / 2, mark.name)
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


def _draw_dots(axes: Axes, marks: Sequence[FamilyMark]) -> None:
    for mark in sorted(marks, key=lambda mark: -mark.share):
        spread = mark.high / mark.low
        axes.plot([mark.low, mark.high], [spread, spread], color=FAINT, linewidth=0.9, alpha=0.55, zorder=2)
        axes.scatter(mark.eta, spread, s=_dot_area(mark), color=BLUE, alpha=0.8, edgecolor="white", linewidth=0.8,
                     zorder=3)


def _dot_area(mark: FamilyMark) -> float:
    return max(_SMALLEST_DOT, _LARGEST_DOT * mark.share)
