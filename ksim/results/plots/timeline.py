"""How load, throughput, cache and power went over the run."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ksim.results.arrays import Floats
from ksim.results.history import History
from ksim.results.plots.style import (
    BLUE,
    DASHES,
    FAINT,
    GREEN,
    ORANGE,
    PLAIN,
    PURPLE,
    beside,
    canvas,
    grid_of,
    percent_axis,
)
from ksim.results.series import kv_usage, power, running, waiting
from ksim.results.wording import number, percent

_BINS = 240


def timeline_figure(history: History) -> Figure:
    """Requests running and waiting, output tokens per second, KV cache in use and watts per GPU, over the run."""
    edges = np.linspace(0, history.duration or 1.0, _BINS + 1)
    figure = canvas(10, 8, "The run over time", f"every point the mean over {number(float(edges[1]))} s")
    load, tokens, cache, watts = grid_of(figure, 4, 1, heights=(1.5, 1, 1, 1), share_x=True)
    _load(load, history, edges)
    _tokens(tokens, history, edges)
    _cache(cache, history, edges)
    _watts(watts, history, edges)
    watts.set_xlabel("seconds from the start of the run")
    watts.set_xlim(0, edges[-1])
    return figure


def _area(axes: Axes, edges: Floats, values: Floats, colour: str, label: str = "") -> None:
    middles = (edges[:-1] + edges[1:]) / 2
    axes.plot(middles, values, color=colour, linewidth=1.3, label=label)
    axes.fill_between(middles, values, color=colour, alpha=0.15, linewidth=0)
    axes.set_ylim(bottom=0)


def _load(axes: Axes, history: History, edges: Floats) -> None:
    axes.set_title("Requests")
    _area(axes, edges, running(history).means(edges), BLUE, "running")
    _area(axes, edges, waiting(history).means(edges), ORANGE, "waiting")
    axes.legend(loc="lower right", ncols=2, bbox_to_anchor=(1, 1.0), borderaxespad=0.2)


def _tokens(axes: Axes, history: History, edges: Floats) -> None:
    axes.set_title("Output tokens per second")
    counts, _ = np.histogram(history.requests.tokens, edges)
    _area(axes, edges, counts / np.diff(edges), GREEN)
    axes.yaxis.set_major_formatter(PLAIN)


def _cache(axes: Axes, history: History, edges: Floats) -> None:
    usage = kv_usage(history)
    axes.set_title("KV cache in use")
    beside(axes, f"fullest engine: up to {percent(float(history.steps.kv_usage.max()))}")
    _area(axes, edges, usage.means(edges), PURPLE)
    percent_axis(axes, full=usage.peak > 0.5)


def _watts(axes: Axes, history: History, edges: Floats) -> None:
    watts, idle = power(history).means(edges) / history.gpus, history.static_watts / history.gpus
    axes.set_title("Watts per GPU")
    beside(axes, f"mean {number(float(watts.mean()))} W, idle {number(idle)} W")
    _area(axes, edges, watts, ORANGE)
    axes.axhline(idle, color=FAINT, linewidth=1, linestyle=DASHES)

