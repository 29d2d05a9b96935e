"""The run over time: requests, rates, tokens, KV cache and power."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

import numpy as np

from ksim.page import over_time
from ksim.page.charts import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, PURPLE, Figure, area, axis, figure, line
from ksim.page.document import Document
from ksim.page.markup import note
from ksim.page.reading import Run
from ksim.report.wording import number
from ksim.results.arrays import Floats

#: Points of a curve, and bins for requests, of which there are far fewer than tokens.
POINTS, _REQUEST_BINS = 480, 96
_TABLE_ROWS = 12
_HOVER = "%{y:,.4~g} at %{x:,.4~g} s"


def add(document: Document, run: Run) -> None:
    """Add five panels, one above the other, over the same seconds."""
    panels = _panels(run, np.linspace(0, run.duration, POINTS + 1))
    coarse = np.linspace(0, run.duration, _TABLE_ROWS + 1)
    caption = (f"Each point is the mean over {number(run.duration / POINTS)} s, of offered and served requests over"
               f" {number(run.duration / _REQUEST_BINS)} s. Drag to zoom, double-click to go back.")
    document.section("timeline", "The run over time",
                     document.figure("timeline", _stacked(run, panels), caption, *_table(run, coarse)), *_remarks(run))


Panels = Mapping[str, Sequence[tuple[str, Floats, str]]]


def _panels(run: Run, edges: Floats) -> Panels:
    """The curves of each panel by its axis title: name, values between *edges*, and colour."""
    rough = max(1, (len(edges) - 1) * _REQUEST_BINS // POINTS)
    return {
        "requests": [("running", over_time.running(run).means(edges), BLUE),
                     ("waiting", over_time.waiting(run).means(edges), ORANGE)],
        "requests/s": [("offered", over_time.arrivals(run, rough, edges), PURPLE),
                       ("served", over_time.completions(run, rough, edges), GREEN)],
        "output tokens/s": [("output tokens/s", over_time.tokens(run, edges), GREEN)],
        "KV cache, %": [*_coloured(over_time.kv_usage(run, edges), "KV cache", PURPLE)],
        "W per GPU": [*_coloured(over_time.watts(run, edges), "W per GPU", ORANGE)],
    }


def _coloured(curves: Mapping[str, Floats], name: str, colour: str) -> Iterator[tuple[str, Floats, str]]:
    """A curve for each pool, or one of this *name* and *colour*."""
    for (pool, values), own in zip(curves.items(), cycle(PALETTE), strict=False):
        yield (f"{name}, {pool}", values, own) if pool else (name, values, colour)


def _stacked(run: Run, panels: Panels) -> Figure:
    """A panel below the other, each with a legend of its own where it has several curves."""
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {}
    height = 1 / len(panels)
    for place, (title, curves) in enumerate(panels.items()):
        own, top = "" if place == 0 else str(place + 1), 1 - place * height - 0.03
        layout[f"yaxis{own}"] = axis(title, domain=[top - height + 0.06, top], rangemode="tozero", anchor="x", nticks=5)
        layout[f"legend{own}"] = {"orientation": "h", "x": 1, "xanchor": "right", "y": top, "yanchor": "bottom",
                                  "font": {"color": INK}, "traceorder": "normal"}
        places = {"yaxis": f"y{own}", "legend": f"legend{own}", "showlegend": len(curves) > 1}
        traces += [_curve(run, *curve, len(curves) > 1, places) for curve in curves]
    layout["xaxis"] = axis("seconds from the start of the run", anchor=f"y{len(panels)}", range=[0, run.duration],
                           showspikes=True, spikemode="across", spikethickness=1, spikecolor=FAINT, spikedash="dot")
    return figure(traces, 860, **layout)


def _curve(run: Run, name: str, values: Floats, colour: str, among: bool, places: Mapping[str, Any]) -> dict[str, Any]:
    """A curve through the means of equal parts of the run, over a pale area unless it is *among* others."""
    edges = np.linspace(0, run.duration, len(values) + 1)
    return (line if among else area)((edges[:-1] + edges[1:]) / 2, values, name, colour,
                                     f"{_HOVER}<extra>%{{fullData.name}}</extra>", line={"width": 1.6}, **places)


def _table(run: Run, edges: Floats) -> tuple[list[str], list[list[str]]]:
    """The same in a few rows."""
    curves = [curve for panel in _panels(run, edges).values() for curve in panel]
    rows = [[f"{number(float(begin))} to {number(float(end))}",
             *(number(float(values[place * len(values) // (len(edges) - 1)])) for _, values, _ in curves)]
            for place, (begin, end) in enumerate(pairwise(edges))]
    return ["seconds", *(f">{name}" for name, _, _ in curves)], rows


def _remarks(run: Run) -> Iterator[Any]:
    if run.summary["preemptions"]:
        yield note("Preempted requests count as running until they end.")
    if not run.engines:
        yield note("The share of the KV cache follows from its peak in summary.json, as if all engines had as many"
                   " blocks.")
