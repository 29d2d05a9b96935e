"""Where the GPUs' time and energy went: kernel families, waiting and idle time.

Kernels under the roofline: FLOP/s of one GPU over FLOP per byte.

Where requests' time went: the phases behind the mean, the median and the p99 of TTFT, TPOT and E2EL.
"""

from collections.abc import Iterator, Mapping
from math import ceil, floor, hypot, log10
from typing import Any

import numpy as np

from ksim.flow.steps import BOUNDS
from ksim.page.document import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    Document,
    Figure,
    Markup,
    axis,
    details,
    element,
    figure,
    line,
    missing,
    note,
    numbers,
    safe,
    table,
)
from ksim.page.over_time import by_group, colour
from ksim.page.reading import STREAMED, Run
from ksim.page.run.lead import shown
from ksim.report.wording import measure, number, outwards, percent
from ksim.results.attribution import METRICS, Breakdown, groups
from ksim.results.kernels import HOST, IDLE, FamilyShare, families
from ksim.results.steps import Floats

_WAITING = {HOST: "waiting for the CPU", IDLE: "nothing to do"}
_MOST = 12


def add_kernels(document: Document, run: Run) -> None:
    """Add shares of time and energy by family, the numbers of the GPUs, and every kernel."""
    title, facts = "Where the GPUs' time and energy went", element("dl", *_facts(run), cls="facts")
    if run.kernels is None:
        document.section("kernels", title, missing(f"By kernel it is not known: {STREAMED}."), facts)
        return
    found = families(run.kernels)
    rows = [[_name(row), percent(row.time), percent(row.energy), number(row.joules + row.static)] for row in found]
    caption = (f"Share of the run's GPU time and of its energy by kernel family, static power included. The largest"
               f" {min(_MOST, len(found))} of {len(found)} are drawn.")
    drawn = document.figure("kernels", _drawn(found[:_MOST]), caption, ("family", ">time", ">energy", ">J"), rows)
    document.section("kernels", title, drawn, facts,
                     details(f"All {len(run.kernels)} kernels", table(*_every(run), "Kernels, most time first",
                                                                     sortable=True)))


def _name(row: FamilyShare) -> str:
    return _WAITING.get(row.family, row.family)


def _drawn(found: list[FamilyShare]) -> Figure:
    names = [safe(_name(row)) for row in found]
    bars = [_bar(title, names, [getattr(row, title) for row in found], colour)
            for title, colour in (("time", BLUE), ("energy", ORANGE))]
    return figure(bars, 110 + 40 * len(found), barmode="group", bargap=0.3, yaxis=axis(autorange="reversed"),
                  xaxis=axis("share of all, %", rangemode="tozero"))


def _bar(title: str, names: list[str], shares: list[float | None], colour: str) -> dict[str, Any]:
    return {"type": "bar", "orientation": "h", "name": title, "y": names, "marker": {"color": colour},
            "x": numbers([100 * (share or 0.0) for share in shares]),
            "hovertemplate": f"%{{x:.3~g}} % of the {title}<extra>%{{y}}</extra>"}


def _facts(run: Run) -> Iterator[Markup]:
    entries: list[tuple[str, str, Any]] = [
        ("GPUs busy", "gpu_busy_share", percent), ("waiting for the CPU", "host_share", percent),
        ("of peak FLOP/s (MFU)", "mfu", percent), ("of peak bytes/s (MBU)", "mbu", percent),
        ("steps", "steps", number), ("tokens per step", "mean_batch_tokens", number),
        ("ms per step", "mean_step_ms", number), ("KV cache, mean", "kv_cache_usage_mean", percent),
        ("KV cache, peak", "kv_cache_usage_peak", percent), ("prefix hits", "prefix_cache_hit_rate", percent),
        ("preemptions", "preemptions", number), ("J of prefill", "prefill_energy_joules", number),
        ("J of decode", "decode_energy_joules", number), ("J between steps", "idle_energy_joules", number)]
    for title, key, show in entries:
        yield element("div", element("dt", title), element("dd", shown(run.summary, key, show)))


def _every(run: Run) -> tuple[list[str], list[list[Any]]]:
    """All kernels: time, work, bound, and how close to the roofline."""
    assert run.kernels is not None
    rows = []
    for row in run.kernels.to_pylist():
        bound = max(BOUNDS, key=lambda name: row[f"{name}_share"] or 0.0) if row["launches"] else ""
        low, high = row["low_seconds"], row["high_seconds"]
        between = "" if low is None else outwards(low, high)
        rows.append([_WAITING.get(row["label"], row["label"]), row["family"],
                     *((number(row[key]), row[key]) for key in ("launches", "seconds")), between,
                     *((percent(row[key]), row[key]) for key in ("run_share", "flops_share", "bandwidth_share")),
                     (number(row["eta"]), row["eta"]), (number(row["joules"]), row["joules"]), bound,
                     row["heaviest_shape"] or ""])
    return ["kernel", "family", ">launches", ">s", ">90 %, s", ">of the run", ">of peak FLOP/s", ">of peak bytes/s",
            ">eta", ">J", "bound", "heaviest shape"], rows


_COLOURS = {"memory": BLUE, "compute": ORANGE, "communication": PURPLE, "launch": GREY}
_LARGEST, _SMALLEST = 46.0, 7.0
#: Kernels within so many decades share one text.
_NEAR = 0.35
Row = Mapping[str, Any]


def add_roofline(document: Document, run: Run) -> None:
    """Add the roofline; a run without kernels that compute has none."""
    if run.kernels is None:
        document.section("roofline", "Kernels on the roofline", missing(f"Not known: {STREAMED}."))
        return
    marks = [row for row in run.kernels.to_pylist() if row["flops"] and row["bytes"] and row["gpu_seconds"]]
    if not marks:
        document.section("roofline", "Kernels on the roofline", missing("No kernel of this run computes."))
        return
    caption = ("Every kernel by its FLOP per byte and FLOP/s on one GPU. The area of its mark is its share of the time,"
               " its colour what limits most of it; +2 counts others right beside it. Lines are the data"
               " sheet's peaks, for 16-bit numbers.")
    columns = ("kernel", ">FLOP per byte", ">FLOP/s", ">of peak FLOP/s", ">of peak bytes/s", "bound")
    drawn = document.figure("roofline", _roofs_drawn(marks, _roofs(run, marks)), caption, columns, list(_rows(marks)))
    document.section("roofline", "Kernels on the roofline", drawn)


def _bound(row: Row) -> str:
    return max(BOUNDS, key=lambda name: row[f"{name}_share"] or 0.0)


def _rows(marks: list[Row]) -> Iterator[list[str]]:
    for row in marks:
        yield [f"{row['label']} ({row['family']})", f"{row['flops'] / row['bytes']:.4g}",
               measure(row["flops"] / row["gpu_seconds"], "FLOP/s"), percent(row["flops_share"]),
               percent(row["bandwidth_share"]), _bound(row)]


def _roofs(run: Run, marks: list[Row]) -> set[tuple[str, float, float]]:
    """Each kind of GPU: its name, and its peaks of FLOP/s and bytes/s."""
    if run.engines:
        return {(built["gpu"], built["peak_flops"], built["peak_bandwidth"]) for built in run.engines}
    row = max(marks, key=lambda row: row["seconds"])
    return {(str(run.summary.get("gpu") or ""), row["flops"] / row["gpu_seconds"] / row["flops_share"],
             row["bytes"] / row["gpu_seconds"] / row["bandwidth_share"])}


def _roofs_drawn(marks: list[Row], roofs: set[tuple[str, float, float]]) -> Figure:
    left = min([row["flops"] / row["bytes"] for row in marks]) / 3
    right = 25 * max([row["flops"] / row["bytes"] for row in marks] + [flops / band for _, flops, band in roofs])
    lines = [_roof(name, flops, band, left, right) for name, flops, band in sorted(roofs)]
    named = _names(marks)
    most = max(row["seconds"] for row in marks)
    dots = [_marks(bound, [row for row in marks if _bound(row) == bound], named, most) for bound in BOUNDS]
    low = min(row["flops"] / row["gpu_seconds"] for row in marks) / 3
    return figure([*lines, *(dot for dot in dots if dot["x"])], 460,
                  xaxis=axis("FLOP per byte", tickangle=0, **_decades(left, right, "")),
                  yaxis=axis("FLOP/s of one GPU", **_decades(low, 3 * max(flops for _, flops, _ in roofs), "FLOP/s")))


def _names(marks: list[Row]) -> dict[tuple[str, str], str]:
    """What is written beside kernels with more than a fiftieth of the time; close ones share one text."""
    whole, groups = sum(row["seconds"] for row in marks), list[list[Row]]()
    for row in sorted(marks, key=lambda row: -row["seconds"]):
        near = next((group for group in groups if _distance(group[0], row) < _NEAR), None)
        if near is not None:
            near.append(row)
        elif row["seconds"] > 0.02 * whole:
            groups.append([row])
    return {(group[0]["label"], group[0]["family"]): f"{group[0]['label']}{f' +{len(group) - 1}' if group[1:] else ''}"
            for group in groups}


def _distance(one: Row, other: Row) -> float:
    """How far apart two kernels are, in decades."""
    x, y = (log10(one[above] / one[below]) - log10(other[above] / other[below])
            for above, below in (("flops", "bytes"), ("flops", "gpu_seconds")))
    return float(hypot(x, y))


def _decades(low: float, high: float, unit: str) -> dict[str, Any]:
    """Ticks at powers of ten, in plain numbers or with a prefix."""
    powers = [10.0 ** power for power in range(floor(log10(low)), ceil(log10(high)) + 1)]
    texts = [measure(power, unit).replace(".00", "").replace(".0", "") if unit else f"{power:,.10g}"
             for power in powers]
    return {"tickvals": powers, "ticktext": texts, "type": "log", "range": [log10(low), log10(high)]}


def _roof(name: str, flops: float, bandwidth: float, left: float, right: float) -> dict[str, Any]:
    x = np.array([left, flops / bandwidth, 1e3 * right])  # an axis may go on for the sake of a text
    title = f"{name} peak: {measure(flops, 'FLOP/s')}, {measure(bandwidth, 'B/s')}"
    return line(x, np.minimum(flops, bandwidth * x), title, INK, f"{safe(title)}<extra></extra>", line={"width": 1.6})


def _marks(bound: str, rows: list[Row], named: Mapping[tuple[str, str], str], most: float) -> dict[str, Any]:
    sizes = [max(_SMALLEST, _LARGEST * (row["seconds"] / most) ** 0.5) for row in rows]
    texts = [safe(named.get((row["label"], row["family"]), "")) for row in rows]
    hover = [f"{safe(row['label'])} ({safe(row['family'])})<br>{percent(row['run_share'])} of the run,"
             f" {percent(row['flops_share'])} of peak FLOP/s,<br>{percent(row['bandwidth_share'])} of peak bytes/s"
             for row in rows]
    return {"type": "scatter", "mode": "markers+text", "name": f"{bound}-bound",
            "x": numbers([row["flops"] / row["bytes"] for row in rows]),
            "y": numbers([row["flops"] / row["gpu_seconds"] for row in rows]), "text": texts, "hovertext": hover,
            "hovertemplate": "%{hovertext}<extra></extra>", "textposition": "middle right",
            "marker": {"size": sizes, "color": _COLOURS[bound], "opacity": 0.75,
                       "line": {"width": 1, "color": _COLOURS[bound]}},
            "textfont": {"color": INK, "size": 12}}


def add_phases(document: Document, run: Run) -> None:
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
    drawn = _phases_drawn(parts, {titles[place]: place for place in shown})
    return document.figure("phases", drawn, caption, ("phase, ms", *(f">{_title(key)}" for key in parts)), rows)


def _title(key: str) -> str:
    statistic, _, metric = key.partition("_")
    return f"{statistic} {metric.upper()}"


def _phases_drawn(parts: Mapping[str, Floats], shown: Mapping[str, int]) -> Figure:
    """A panel of bars for each metric; phases are *shown* by title and place."""
    metrics = [metric for metric in METRICS if any(key.endswith(f"_{metric}") for key in parts)]
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {}
    for row, metric in enumerate(metrics):
        own, top, last = "" if row == 0 else str(row + 1), 1 - row / len(metrics), row == len(metrics) - 1
        layout[f"xaxis{own}"] = axis(f"{metric.upper()}, ms", anchor=f"y{own}", rangemode="tozero")
        layout[f"yaxis{own}"] = axis(domain=[top - 1 / len(metrics) + (0 if last else 0.13), top], anchor=f"x{own}")
        bars = {key.partition("_")[0]: part for key, part in reversed([*parts.items()]) if key.endswith(f"_{metric}")}
        traces += [_phases_bar(title, list(bars), [float(part[place]) for part in bars.values()], own)
                   for title, place in shown.items()]
    return figure(traces, 200 + 150 * len(metrics), barmode="stack", **layout)


def _phases_bar(title: str, names: list[str], values: list[float], own: str) -> dict[str, Any]:
    return {"type": "bar", "orientation": "h", "name": safe(title), "legendgroup": safe(title), "showlegend": not own,
            "x": numbers(values), "y": names, "xaxis": f"x{own}", "yaxis": f"y{own}",
            "marker": {"color": colour(title)},
            "hovertemplate": "%{x:,.4~g} ms of %{fullData.name}<extra>%{y}</extra>"}
