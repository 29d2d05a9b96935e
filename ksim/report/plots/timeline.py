"""Load, throughput, cache and power over the run.

The links of a fleet that are used most, over the run.

Time per output token over the batch, with speculation and without.
"""

from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ksim.report.plots.style import (
    BLUE,
    DASHES,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    PURPLE,
    Margins,
    beside,
    canvas,
    grid_of,
    linear_ticks,
    percent_axis,
    reach,
)
from ksim.report.wording import UP, measure, number, percent
from ksim.results.history import History
from ksim.results.series import LinkUse, Series, busiest, kv_usage, moving, power, running, waiting
from ksim.results.steps import Floats, sums

__all__ = ["speculation_figure", "timeline_figure", "shown_span", "shown_links", "links_figure"]


#: Points of a curve; bins for requests, of which there are far fewer than tokens.
_BINS, _REQUEST_BINS = 240, 60


def timeline_figure(history: History, title: str = "The run over time") -> Figure:
    """Five panels over the run.

    They show running and waiting requests, offered and completed requests per second, output tokens per second, KV
    cache usage, and watts per GPU.
    """
    end, note = shown_span(history)
    edges = np.linspace(0, end, _BINS + 1)
    figure = canvas(10, 9.2, title, f"every point the mean over {number(float(edges[1]))} s{note}", fixed=True)
    grid = grid_of(figure, 5, 1, heights=(1.4, 1, 1, 1, 1), share_x=True, margins=Margins(rows=0.5))
    for axes, draw in zip(grid, (_load, _rates, _tokens, _cache, _watts), strict=True):
        linear_ticks(axes, y=4)
        draw(axes, history, edges)
    grid[-1].set_xlabel("seconds from the start of the run")
    grid[-1].set_xlim(0, edges[-1])
    return figure


def shown_span(history: History) -> tuple[float, str]:
    """The time up to which figures show the run, and a note if that leaves out a few requests long after all others."""
    requests = history.requests
    moments = np.concatenate([requests.arrival, requests.last_token[requests.output > 0]])
    end = reach(moments, room=1.1)
    if not 0 < end < 0.9 * history.duration:
        return history.duration or 1.0, ""
    late = int((np.fmax(requests.arrival, requests.last_token) > end).sum())
    return end, f"; beyond the axis: {late:,} of {len(requests):,} requests, the last at {number(history.duration)} s"


def area(axes: Axes, edges: Floats, values: Floats, colour: str, label: str = "") -> None:
    """Draw the means between *edges* as a curve over a pale area."""
    middles = (edges[:-1] + edges[1:]) / 2
    axes.plot(middles, values, color=colour, linewidth=1.3, label=label)
    axes.fill_between(middles, values, color=colour, alpha=0.15, linewidth=0)
    axes.set_ylim(bottom=0)


def _load(axes: Axes, history: History, edges: Floats) -> None:
    axes.set_title("Requests")
    area(axes, edges, running(history).means(edges), BLUE, "running")
    area(axes, edges, waiting(history).means(edges), ORANGE, "waiting")
    if len(history.splits):
        area(axes, edges, moving(history).means(edges), GREEN, "between engines")
        axes.set_ylim(0, 1.06 * max(float(np.max(np.asarray(line.get_ydata()))) for line in axes.lines) or 1.0)
    _legend(axes)


def _rates(axes: Axes, history: History, edges: Floats) -> None:
    """Arrivals and completions per second; a burst of arrivals may leave the axis."""
    axes.set_title("Requests per second")
    coarse = np.linspace(0, edges[-1], _REQUEST_BINS + 1)
    requests = history.requests
    offered, served = (np.histogram(times, coarse)[0] / coarse[1]
                       for times in (requests.arrival, requests.last_token[requests.completed]))
    axes.stairs(offered, coarse, color=ORANGE, linewidth=1.3, label="offered")
    axes.stairs(served, coarse, color=GREEN, linewidth=1.3, label="served")
    most, top = float(offered.max(initial=0.0)), reach(np.concatenate([offered, served]))
    axes.set_ylim(0, 1.08 * top or 1.0)
    if most > top:
        axes.annotate(f"up to {number(most, UP)}", (coarse[int(offered.argmax())], 1.08 * top), xytext=(12, -3),
                      textcoords="offset points", va="top", fontsize=8.5, color=ORANGE)
    _legend(axes)


def _legend(axes: Axes) -> None:
    _, labels = axes.get_legend_handles_labels()
    axes.legend(loc="lower right", ncols=len(labels), bbox_to_anchor=(1, 1.0), borderaxespad=0.2)


def _tokens(axes: Axes, history: History, edges: Floats) -> None:
    axes.set_title("Output tokens per second")
    steps = history.steps
    tokens = np.bincount(history.requests.token_steps, minlength=len(steps))
    inside = (steps.time > 0) & (steps.time < edges[-1])
    counts = sums((steps.time[inside] / edges[1]).astype(np.int64), tokens[inside], len(edges))[: len(edges) - 1]
    area(axes, edges, counts / edges[1], GREEN)


def _cache(axes: Axes, history: History, edges: Floats) -> None:
    axes.set_title("KV cache in use")
    if history.pools:
        _by_pool(axes, history, edges, kv_usage)
        top = axes.get_ylim()[1]
        percent_axis(axes, full=top > 0.5)
        axes.set_ylim(top=1.02 if top > 0.5 else top)
        return
    usage = kv_usage(history)
    who = "fullest engine: " if len(history.engines) > 1 else ""
    beside(axes, f"{who}up to {percent(float(history.steps.kv_usage.max()), 1, UP)}")
    area(axes, edges, usage.means(edges), PURPLE)
    percent_axis(axes, full=usage.peak > 0.5)


def _by_pool(axes: Axes, history: History, edges: Floats, of: Callable[[History, list[int]], Series],
             per_gpu: bool = False) -> None:
    """Draw a quantity of the engines of each pool, or its mean *per_gpu*."""
    most = 0.0
    for (place, name), colour in zip(enumerate(history.pools), cycle(PALETTE), strict=False):
        places = np.flatnonzero(history.pool == place).tolist()
        gpus = sum(history.engines[own].ranks * history.engines[own].stages for own in places)
        values = of(history, places).means(edges) / (gpus if per_gpu else 1)
        area(axes, edges, values, colour, name)
        most = max(most, float(values.max(initial=0.0)))
    axes.set_ylim(0, 1.06 * most or 1.0)
    _legend(axes)


def _watts(axes: Axes, history: History, edges: Floats) -> None:
    axes.set_title("Watts per GPU")
    if history.pools:
        _by_pool(axes, history, edges, power, per_gpu=True)
        return
    watts, idle = power(history).means(edges) / history.gpus, history.static_watts / history.gpus
    beside(axes, f"mean {number(float(watts.mean()))} W, idle {number(idle)} W")
    area(axes, edges, watts, ORANGE)
    axes.axhline(idle, color=FAINT, linewidth=1, linestyle=DASHES)


#: The most links that are shown, and points of a curve.
_MOST, _LINKS_BINS = 8, 240


def shown_links(history: History) -> list[LinkUse]:
    """The links in the figure; none in a run whose links nobody used."""
    return busiest(history, _MOST)


def links_figure(history: History, title: str = "Links") -> Figure:
    """A panel for each of the busiest links: the share of its capacity in use over the run."""
    links = shown_links(history)
    end, note = shown_span(history)
    edges = np.linspace(0, end, _LINKS_BINS + 1)
    figure = canvas(10, 1.6 + 1.25 * len(links), title,
                    f"the busiest of {len(history.links):,} links, each in its own direction; every point the mean over"
                    f" {number(float(edges[1]))} s{note}", fixed=True)
    grid = grid_of(figure, len(links), 1, share_x=True, margins=Margins(rows=0.5))
    for axes, link in zip(grid, links, strict=True):
        axes.set_title(link.name)
        beside(axes, f"of {measure(link.capacity, 'B/s')}: mean {percent(link.mean)}, at most"
                     f" {percent(link.use.peak, 1, UP)}")
        values = link.use.means(edges)
        area(axes, edges, values, ORANGE)
        percent_axis(axes, full=float(values.max(initial=0.0)) > 0.5)
    grid[-1].set_xlabel("seconds from the start of the run")
    grid[-1].set_xlim(0, edges[-1])
    return figure


def speculation_figure(title: str, note: str, said: str, batches: Sequence[int], plain: Sequence[float],
                       speculative: Sequence[float], pays: int) -> Figure:
    """TPOT for each of *batches*; a line where speculation stops to pay, if it does among them, as is *said* above."""
    figure = canvas(7.2, 4.4, title, note)
    (axes,) = grid_of(figure, 1, 1)
    axes.plot(batches, [1e3 * seconds for seconds in plain], color=GREY, marker="o", markersize=4, label="plain")
    axes.plot(batches, [1e3 * seconds for seconds in speculative], color=BLUE, marker="o", markersize=4,
              label="with speculation")
    if 0 < pays < batches[-1]:
        axes.axvline(pays, color=ORANGE, linestyle=DASHES, label=f"pays up to {pays}")
    linear_ticks(axes)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.set_title(said)
    axes.set_xlabel("sequences that decode")
    axes.set_ylabel("time per output token, ms")
    axes.legend(loc="upper left")
    return figure
