"""Latency distributions: which share of requests, or of tokens, is served within how long."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ksim.results.arrays import Floats
from ksim.results.history import History
from ksim.results.metrics import Limits
from ksim.results.plots.style import BLUE, DASHES, INK, RED, beside, canvas, grid_of, log_axis, percent_axis
from ksim.results.wording import number, percent

_POINTS = np.linspace(0, 100, 801)
#: Beyond this spread between the slow and the fast, a linear axis would hide one of them.
_WIDE = 25.0


def latency_figure(history: History, limits: Limits) -> Figure:
    """Cumulative distributions of TTFT, TPOT, ITL and end-to-end latency of the completed requests."""
    requests, done = history.requests, history.requests.completed
    count, tokens = int(done.sum()), int(requests.output[done].sum())
    figure = canvas(10, 7, "Latency", f"{count:,} completed requests, {tokens:,} output tokens")
    panels = (
        ("Time to first token (TTFT)", requests.ttft[done], limits.ttft, "requests"),
        ("Time per output token (TPOT)", requests.tpot[done & (requests.output > 1)], limits.tpot, "requests"),
        ("Between two tokens (ITL)", requests.gaps_of(done), None, "gaps"),
        ("Arrival to last token (E2EL)", requests.e2e[done], limits.e2el, "requests"),
    )
    for axes, (title, values, limit, things) in zip(grid_of(figure, 2, 2), panels, strict=True):
        axes.set_title(title)
        axes.set_ylabel(f"share of {things}")
        axes.set_xlabel("milliseconds")
        percent_axis(axes, full=True)
        if len(values):
            _distribution(axes, 1e3 * values)
        if limit is not None and len(values):
            _target(axes, 1e3 * limit, float((values <= limit).mean()))
    return figure


def _distribution(axes: Axes, values: Floats) -> None:
    quantiles = np.percentile(values, _POINTS)
    shares = _POINTS / 100
    axes.plot(quantiles, shares, color=BLUE)
    low, high = float(quantiles[8]), float(np.percentile(values, 99.9))
    if low > 0 and high / low > _WIDE:
        log_axis(axes, 0.8 * float(quantiles[0]) or 0.5 * low, 2 * high, room=9)
    else:
        axes.set_xlim(0, 1.25 * high if high > 0 else 1)
    axes.fill_between([*quantiles, 10 * quantiles[-1]], [*shares, 1.0], color=BLUE, alpha=0.10, linewidth=0)
    for percentage in (50, 90, 99):
        value = float(np.percentile(values, percentage))
        axes.plot(value, percentage / 100, "o", color=BLUE, markersize=5, markeredgecolor="white", zorder=3)
        axes.annotate(f"p{percentage}  {number(value)}", (value, percentage / 100), xytext=(7, -4),
                      textcoords="offset points", ha="left", va="top", fontsize=8.5, color=INK)


def _target(axes: Axes, limit: float, met: float) -> None:
    axes.axvline(limit, color=RED, linewidth=1.2, linestyle=DASHES)
    beside(axes, f"{percent(met)} within {number(limit)} ms", RED)


