"""Latency distributions of the completed requests, with their targets and intervals."""

from collections.abc import Iterator
from math import log10
from typing import Any

import numpy as np

from ksim.page.charts import BLUE, INK, PURPLE, RED, Figure, axis, figure, label, line, pale, rule, step_of
from ksim.page.document import Document
from ksim.page.markup import Markup, element, missing, note, table
from ksim.page.reading import Run
from ksim.page.run.answer import shown
from ksim.report.wording import number, percent
from ksim.results.arrays import Floats
from ksim.results.metrics import LATENCIES, PERCENTILES

TITLES = {"ttft": "Time to first token (TTFT)", "tpot": "Time per output token (TPOT)",
          "itl": "Between two tokens (ITL)", "e2el": "Arrival to last token (E2EL)", "queue": "In the queue"}
#: Distributions that are drawn; gaps between tokens are in no table, so that only their percentiles are known.
_DRAWN = ("ttft", "tpot", "e2el", "queue")
_WIDE = 25.0


def add(document: Document, run: Run) -> None:
    """Add the table of all latencies, and a distribution of each that is kept by request."""
    if not run.summary["completed"]:
        document.section("latency", "Latency", missing("No request completed, so there are no latencies."))
        return
    panels = [_panel(document, run, name) for name in _DRAWN]
    document.section("latency", "Latency", _table(run), *_remarks(run), element("div", *panels, cls="grid"))


def _table(run: Run) -> Markup:
    statistics = ("mean", *(f"p{share}" for share in PERCENTILES))
    rows = [[TITLES[name], *(shown(run.summary, f"{statistic}_{name}_ms") for statistic in statistics)]
            for name in LATENCIES]
    return table(("Latency, ms", *(f">{statistic}" for statistic in statistics)), rows,
                 "Latencies of completed requests in milliseconds")


def _remarks(run: Run) -> Iterator[Markup]:
    if run.summary.get("extrapolated_share"):
        yield note(shown(run.summary, "extrapolated_share", percent), " of the kernels' time is in shapes outside what"
                   " was measured. Intervals say how far kernels' times may be off; effects on batches and queues are"
                   " not included.")
    if run.breakdown is None:
        yield note("Percentiles of streamed runs are within 0.1 % of the exact values.")


def _panel(document: Document, run: Run, name: str) -> Markup | None:
    values = run.latency(name)
    values = values[~np.isnan(values)]
    if not len(values):
        return missing(f"{TITLES[name]}: no request has one.")
    limit = run.targets.get(name)
    met = "" if limit is None else f"; {percent(float((values <= limit).mean()))} within {number(limit)} ms, the target"
    caption = element("span", element("strong", TITLES[name]),
                      f": share of {len(values):,} requests that took at most so long{met}.")
    rows = [(f"p{share}", shown(run.summary, f"p{share}_{name}_ms")) for share in PERCENTILES]
    return document.figure(f"latency-{name}", _drawn(run, name, values, limit), caption, ("share", ">ms"), rows)


def _drawn(run: Run, name: str, values: Floats, limit: float | None) -> Figure:
    x, shares = step_of(values)
    curve = line(x, 100 * shares, "requests", BLUE, "%{y:.3~g} % within %{x:,.4~g} ms<extra></extra>", fill="tozeroy",
                 fillcolor=pale(BLUE, 0.10), line={"shape": "hv"} if len(x) <= 60 else {})
    marks = {share: run.summary[f"p{share}_{name}_ms"] for share in (50, 90, 99)}
    texts = [f"p{share} {number(value)}" for share, value in marks.items()]
    points = {"type": "scatter", "mode": "markers+text", "x": list(marks.values()), "y": list(marks), "text": texts,
              "name": "percentiles", "marker": {"color": BLUE, "size": 8}, "textposition": "bottom right",
              "textfont": {"size": 12, "color": INK}, "showlegend": False,
              "hovertemplate": "p%{y}: %{x:,.4~g} ms<extra></extra>"}
    low, high = float(x[min(2, len(x) - 1)]), float(x[-1])
    wide = low > 0 and high / low > _WIDE
    near = [limit] if limit is not None and limit < 20 * high else []
    return figure([curve, points], 300, xaxis=_across(wide, float(x[0]), max(high, *near, 0.0), low), showlegend=False,
                  yaxis=axis("share of requests, %", range=[0, 103]), shapes=[*_bands(run, name), *map(rule, near)],
                  annotations=[_target(target, wide) for target in near])


def _across(wide: bool, first: float, last: float, low: float) -> dict[str, Any]:
    """The axis of milliseconds, with room on the right for the name of the p99."""
    if not wide:
        return axis("milliseconds", range=[0, 1.3 * last or 1.0])
    left = log10(max(0.8 * first, 0.5 * low))
    return axis("milliseconds (logarithmic)", type="log", range=[left, left + 1.28 * (log10(last) - left)], dtick=1)


def _target(limit: float, wide: bool) -> dict[str, Any]:
    return label(f"target {number(limit)}", log10(limit) if wide else limit, 0.03, yref="paper", xanchor="right",
                 yanchor="bottom", xshift=-4, font={"size": 12, "color": RED})


def _bands(run: Run, name: str) -> Iterator[dict[str, Any]]:
    """The intervals of the median and the p99, at their height."""
    for statistic, share in (("median", 50), ("p99", 99)):
        low, high = (run.summary.get(f"{statistic}_{name}_{side}_ms") for side in ("low", "high"))
        if low is not None:
            yield {"type": "line", "x0": low, "x1": high, "y0": share, "y1": share,
                   "line": {"color": PURPLE, "width": 5}, "opacity": 0.55}
