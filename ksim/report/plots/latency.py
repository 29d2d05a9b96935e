"""Latency distributions: the share of requests or tokens within each latency."""

import numpy as np
from attrs import frozen
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ksim.report.plots.style import (
    BLUE,
    DASHES,
    FAINT,
    INK,
    RED,
    Margins,
    canvas,
    grid_of,
    linear_ticks,
    log_axis,
    percent_axis,
    reach,
)
from ksim.report.wording import UP, number, percent
from ksim.results.arrays import Floats
from ksim.results.history import History
from ksim.results.metrics import LatencyTargets, Summary

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
