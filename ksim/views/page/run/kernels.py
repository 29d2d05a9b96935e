"""The sections of a page on GPUs: time and energy by kernel family, the roofline, and the phases of latencies."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ksim.results.attribution import METRICS, Breakdown, by_group, groups
from ksim.results.kernels import families
from ksim.results.numbers import OF_WORK, number_of
from ksim.views.charts import Chart
from ksim.views.figures.kernels import (
    WAITING,
    Roof,
    StepMarks,
    bound_of,
    marks_of,
    name_of,
    roofline_panel,
    roofs_of,
    shares_chart,
)
from ksim.views.figures.run import breakdown_chart
from ksim.views.page.document import Document, details, missing, note, table
from ksim.views.page.reading import STREAMED, SavedRun
from ksim.views.page.run.lead import shown
from ksim.views.tables import Markup, element
from ksim.views.wording import measure, number, outwards, percent, written

_MOST = 12
#: Kernels within so many decades share one text, and those with less than this share of the time have none.
_NEAR, _LEAST = 0.35, 0.02
Row = Mapping[str, Any]


def add_kernels(document: Document, run: SavedRun) -> None:
    """Add shares of time and energy by family, the numbers of the GPUs, and every kernel."""
    title, facts = "Where the GPUs' time and energy went", element("dl", *_facts(run), cls="facts")
    if run.kernels is None:
        document.section("kernels", title, missing(f"By kernel it is not known: {STREAMED}."), facts)
        return
    found = families(run.kernels)
    rows = [[name_of(row), percent(row.time), percent(row.energy), number(row.joules + row.static)] for row in found]
    caption = (f"Share of the run's GPU time and of its energy by kernel family, static power included. The largest"
               f" {min(_MOST, len(found))} of {len(found)} are drawn.")
    drawn = document.figure("kernels", shares_chart(found[:_MOST]), caption, ("family", ">time", ">energy", ">J"), rows,
                            110 + 40 * min(_MOST, len(found)))
    document.section("kernels", title, drawn, facts,
                     details(f"All {len(run.kernels)} kernels", table(*_every(run), "Kernels, most time first",
                                                                      sortable=True)))


def _facts(run: SavedRun) -> Iterator[Markup]:
    for row in map(number_of, OF_WORK):
        yield element("div", element("dt", row.title),
                      element("dd", shown(run.summary, row.key, partial(written, row))))


def _every(run: SavedRun) -> tuple[list[str], list[list[Any]]]:
    """All kernels: time, work, bound, and how close to the roofline."""
    assert run.kernels is not None
    rows = []
    for row in run.kernels.to_pylist():
        low, high = row["low_seconds"], row["high_seconds"]
        between = "" if low is None else outwards(low, high)
        rows.append([WAITING.get(row["label"], row["label"]), row["family"],
                     *((number(row[key]), row[key]) for key in ("launches", "seconds")), between,
                     *((percent(row[key]), row[key]) for key in ("run_share", "flops_share", "bandwidth_share")),
                     (number(row["eta"]), row["eta"]), (number(row["joules"]), row["joules"]),
                     bound_of(row) if row["launches"] else "", row["heaviest_shape"] or ""])
    return ["kernel", "family", ">launches", ">s", ">90 %, s", ">of the run", ">of peak FLOP/s", ">of peak bytes/s",
            ">eta", ">J", "bound", "heaviest shape"], rows


def add_roofline(document: Document, run: SavedRun) -> None:
    """Add the roofline; a run without kernels that compute has none."""
    title = "Kernels on the roofline"
    if run.kernels is None:
        document.section("roofline", title, missing(f"Not known: {STREAMED}."))
        return
    rows = [row for row in run.kernels.to_pylist() if row["flops"] and row["bytes"] and row["gpu_seconds"]]
    if not rows:
        document.section("roofline", title, missing("No kernel of this run computes."))
        return
    caption = ("Every kernel by its FLOP per byte and FLOP/s on one GPU. The area of its mark is its share of the time,"
               " its colour what limits most of it; kernels right beside each other share a text. Lines are the data"
               " sheet's peaks, for 16-bit numbers.")
    marks = list(marks_of(rows))
    drawn = roofline_panel(StepMarks("", marks), _roofs(run, rows), marks, _NEAR, 25, _LEAST)
    columns = ("kernel", ">FLOP per byte", ">FLOP/s", ">of peak FLOP/s", ">of peak bytes/s", "bound")
    document.section("roofline", title, document.figure("roofline", Chart("", [drawn]), caption, columns,
                                                        list(_rows(rows)), 460))


def _rows(rows: list[Row]) -> Iterator[list[str]]:
    for row in rows:
        yield [f"{row['label']} ({row['family']})", f"{row['flops'] / row['bytes']:.4g}",
               measure(row["flops"] / row["gpu_seconds"], "FLOP/s"), percent(row["flops_share"]),
               percent(row["bandwidth_share"]), bound_of(row)]


def _roofs(run: SavedRun, rows: list[Row]) -> list[Roof]:
    """The peaks of each kind of GPU."""
    if run.engines:
        return roofs_of([(built["gpu"], built["peak_flops"], built["peak_bandwidth"]) for built in run.engines])
    row = max(rows, key=lambda row: row["seconds"])
    return [Roof("", row["flops"] / row["gpu_seconds"] / row["flops_share"],
                 row["bytes"] / row["gpu_seconds"] / row["bandwidth_share"])]


def add_phases(document: Document, run: SavedRun) -> None:
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
        key: by_group(column, breakdown.names) for key, column in breakdown.statistics().items()}
    seen = [index for index in range(len(titles)) if any(part[index] > 1e-3 * part.sum() for part in parts.values())]
    rows = [[titles[index], *(number(1e3 * float(part[index])) for part in parts.values())] for index in seen]
    caption = ("Milliseconds of each phase behind the mean, the median and the p99. A percentile's phases are those of"
               " the requests around it, scaled to its value.")
    panels = {metric.upper(): {key.partition("_")[0]: part[seen] for key, part in parts.items()
                               if key.endswith(f"_{metric}")} for metric in METRICS}
    panels = {metric: bars for metric, bars in panels.items() if bars}
    drawn = breakdown_chart("", "", panels, [titles[index] for index in seen])
    return document.figure("phases", drawn, caption, ("phase, ms", *(f">{_title(key)}" for key in parts)), rows,
                           200 + 150 * len(panels))


def _title(key: str) -> str:
    statistic, _, metric = key.partition("_")
    return f"{statistic} {metric.upper()}"
