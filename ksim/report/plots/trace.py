"""The load of a trace: when its requests arrive, and how long they are.

How often a prefix cache hits, by its size.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ksim.report.plots.style import (
    BLUE,
    DASHES,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    beside,
    canvas,
    log_axis,
    looks,
    percent_axis,
    reach,
    write,
)
from ksim.report.wording import number
from ksim.results.steps import Floats

_BINS = 30


def plot_trace(path: Path | str, arrivals: Sequence[float], prompts: Sequence[int], outputs: Sequence[int],
               title: str = "Trace") -> Path:
    """Draw `trace_figure` into *path*, a PNG."""
    with looks():
        return write(trace_figure(arrivals, prompts, outputs, title), Path(path))


def trace_figure(arrivals: Sequence[float], prompts: Sequence[int], outputs: Sequence[int], title: str) -> Figure:
    """Arrival rate over time, and distributions of prompt lengths, output lengths and times between arrivals.

    *arrivals* are in seconds, in any order; *prompts* and *outputs* in tokens.
    """
    times = np.sort(np.asarray(arrivals, dtype=np.float64))
    tokens = int(np.sum(prompts)), int(np.sum(outputs))
    note = f"{len(times):,} requests, {tokens[0]:,} prompt tokens, {tokens[1]:,} output tokens"
    figure = canvas(10, 7, title, note)
    grid = figure.add_gridspec(2, 3, height_ratios=(1, 1.15))
    _rate(figure.add_subplot(grid[0, :]), times)
    _lengths(figure.add_subplot(grid[1, 0]), "Prompt length", np.asarray(prompts, np.float64), BLUE)
    _lengths(figure.add_subplot(grid[1, 1]), "Output length", np.asarray(outputs, np.float64), GREEN)
    _gaps(figure.add_subplot(grid[1, 2]), np.diff(times))
    return figure


def _rate(axes: Axes, times: Floats) -> None:
    """Requests per second; a note counts the few that arrive long after all others."""
    axes.set_title("Requests per second")
    axes.set_xlabel("seconds from the start of the trace")
    span = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    if span <= 0:
        axes.text(0.5, 0.5, "all at once", transform=axes.transAxes, ha="center", color=FAINT)
        return
    end = float(times[0]) + reach(times - times[0], room=1.1)
    edges = np.linspace(times[0], end, max(10, min(150, len(times) // 4)) + 1)
    counts, _ = np.histogram(times, edges)
    axes.stairs(counts / np.diff(edges), edges, fill=True, color=ORANGE, alpha=0.25)
    axes.stairs(counts / np.diff(edges), edges, color=ORANGE, linewidth=1.3)
    shown = times[times <= end]
    mean = (len(shown) - 1) / (float(shown[-1] - shown[0]) or span)
    axes.axhline(mean, color=FAINT, linewidth=1, linestyle=DASHES)
    late = len(times) - len(shown)
    beside(axes, f"mean {number(mean)}"
                 + (f"; {late:,} later, the last at {number(float(times[-1]))} s" if late else ""))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)


def _lengths(axes: Axes, title: str, lengths: Floats, colour: str) -> None:
    """A histogram over a logarithmic axis."""
    axes.set_title(title)
    axes.set_xlabel("tokens")
    if not len(lengths):
        return
    low, high = max(1.0, float(lengths.min())), float(lengths.max())
    edges = np.geomspace(low * 0.9, max(high, low) * 1.1, _BINS + 1)
    counts, _ = np.histogram(lengths, edges)
    log_axis(axes, float(edges[0]), float(edges[-1]), room=6)
    axes.stairs(counts / len(lengths), edges, fill=True, color=colour, alpha=0.45)
    percent_axis(axes)
    axes.set_ylabel("share of requests")
    median, tail = np.percentile(lengths, (50, 99))
    for value in (median, tail):
        axes.axvline(value, color=FAINT, linewidth=1, linestyle=DASHES)
    axes.text(0.98, 0.97, f"p50 {median:,.0f}\np99 {tail:,.0f}", transform=axes.transAxes, ha="right", va="top",
              fontsize=8.5, color=INK, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2})


def _gaps(axes: Axes, gaps: Floats) -> None:
    """The time between arrivals, compared with a Poisson process of the same rate."""
    axes.set_title("Between two arrivals")
    axes.set_xlabel("times the mean")
    axes.set_ylabel("share of arrivals")
    percent_axis(axes, full=True)
    if not len(gaps) or gaps.mean() <= 0:
        return
    shares, points = np.linspace(0, 1, 401), np.linspace(0, 5, 200)
    axes.plot(points, 1 - np.exp(-points), color=FAINT, linewidth=1.2, linestyle=DASHES, label="Poisson")
    axes.plot(np.quantile(gaps / gaps.mean(), shares), shares, color=PURPLE, label="trace")
    axes.set_xlim(0, 5)
    axes.legend(loc="lower right", title=f"variation {number(float(gaps.std() / gaps.mean()))}")


def plot_cache_curve(path: Path, sizes: Sequence[float], rates: Mapping[str, Sequence[float]],
                     ends: Mapping[str, float], title: str, unit: str) -> Path:
    """Draw `cache_curve_figure` into *path*, a PNG."""
    with looks():
        return write(cache_curve_figure(sizes, rates, ends, title, unit), path)


def cache_curve_figure(sizes: Sequence[float], rates: Mapping[str, Sequence[float]], ends: Mapping[str, float],
                       title: str, unit: str) -> Figure:
    """A line of hit *rates* over rising *sizes*, in *unit*, for each policy; tiers are marked at their *ends*."""
    figure = canvas(8.6, 4.8, f"Prefix cache: {title}", "one cache that sees all requests in order")
    axes = figure.subplots()
    for colour, (policy, shares) in zip(PALETTE, rates.items(), strict=False):
        axes.plot(sizes, shares, color=colour, label=policy, alpha=0.85)
    for name, end in ends.items():
        axes.axvline(end, color=FAINT, linewidth=1, linestyle=DASHES)
        axes.text(end, 0.99, f"{name} ", transform=axes.get_xaxis_transform(), ha="right", va="top", color=FAINT,
                  fontsize=8.5, rotation=90)
    axes.set_title("Hits, share of prompt tokens")
    axes.set_xlabel(f"{unit} (logarithmic)")
    log_axis(axes, min(sizes), max(sizes[-1], 1.01 * sizes[0]), room=9)
    percent_axis(axes)
    axes.legend(loc="upper left")
    return figure
