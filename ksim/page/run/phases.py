"""Where requests' time went: the phases behind the mean, the median and the p99 of TTFT, TPOT and E2EL."""

from collections.abc import Mapping
from typing import Any

from ksim.page.charts import Figure, axis, figure, numbers, safe
from ksim.page.document import Document
from ksim.page.grouping import by_group, colour
from ksim.page.markup import Markup, missing, note
from ksim.page.reading import STREAMED, Run
from ksim.report.wording import number
from ksim.results.arrays import Floats
from ksim.results.attribution import groups
from ksim.results.attribution.breakdown import METRICS, Breakdown


def add(document: Document, run: Run) -> None:
    """Add a figure of stacked bars for each latency."""
    title = "Where requests' time went"
    if run.breakdown is None:
        document.section("phases", title, missing(f"Not known: {STREAMED}."))
    elif not len(run.breakdown.ids):
        document.section("phases", title, missing("No request completed."))
    else:
        document.section("phases", title, _figure(document, run.breakdown), note(
            "Shares of shared steps, not delays that others caused: docs/explain.md defines every phase."))


def _figure(document: Document, breakdown: Breakdown) -> Markup:
    titles, parts = groups(breakdown.names), {
        key: 1e3 * by_group(column, breakdown.names) for key, column in breakdown.statistics().items()}
    shown = [place for place in range(len(titles)) if any(part[place] > 1e-3 * part.sum() for part in parts.values())]
    rows = [[titles[place], *(number(float(part[place])) for part in parts.values())] for place in shown]
    caption = ("Milliseconds of each phase behind the mean, the median and the p99. A percentile's phases are those of"
               " the requests around it, scaled to its value.")
    drawn = _drawn(parts, {titles[place]: place for place in shown})
    return document.figure("phases", drawn, caption, ("phase, ms", *(f">{_title(key)}" for key in parts)), rows)


def _title(key: str) -> str:
    statistic, _, metric = key.partition("_")
    return f"{statistic} {metric.upper()}"


def _drawn(parts: Mapping[str, Floats], shown: Mapping[str, int]) -> Figure:
    """A panel of bars for each metric; phases are *shown* by title and place."""
    metrics = [metric for metric in METRICS if any(key.endswith(f"_{metric}") for key in parts)]
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {}
    for row, metric in enumerate(metrics):
        own, top, last = "" if row == 0 else str(row + 1), 1 - row / len(metrics), row == len(metrics) - 1
        layout[f"xaxis{own}"] = axis(f"{metric.upper()}, ms", anchor=f"y{own}", rangemode="tozero")
        layout[f"yaxis{own}"] = axis(domain=[top - 1 / len(metrics) + (0 if last else 0.13), top], anchor=f"x{own}")
        bars = {key.partition("_")[0]: part for key, part in reversed([*parts.items()]) if key.endswith(f"_{metric}")}
        traces += [_bar(title, list(bars), [float(part[place]) for part in bars.values()], own)
                   for title, place in shown.items()]
    return figure(traces, 200 + 150 * len(metrics), barmode="stack", **layout)


def _bar(title: str, names: list[str], values: list[float], own: str) -> dict[str, Any]:
    return {"type": "bar", "orientation": "h", "name": safe(title), "legendgroup": safe(title), "showlegend": not own,
            "x": numbers(values), "y": names, "xaxis": f"x{own}", "yaxis": f"y{own}",
            "marker": {"color": colour(title)},
            "hovertemplate": "%{x:,.4~g} ms of %{fullData.name}<extra>%{y}</extra>"}
