"""Kernels under the roofline: FLOP/s of one GPU over FLOP per byte."""

from collections.abc import Iterator, Mapping
from math import ceil, floor, hypot, log10
from typing import Any

import numpy as np

from ksim.flow.kernels import BOUNDS
from ksim.page.charts import BLUE, GREY, INK, ORANGE, PURPLE, Figure, axis, figure, line, numbers, safe
from ksim.page.document import Document
from ksim.page.markup import missing
from ksim.page.reading import STREAMED, Run
from ksim.report.wording import measure, percent

_COLOURS = {"memory": BLUE, "compute": ORANGE, "communication": PURPLE, "launch": GREY}
_LARGEST, _SMALLEST = 46.0, 7.0
#: Kernels within so many decades share one text.
_NEAR = 0.35
Row = Mapping[str, Any]


def add(document: Document, run: Run) -> None:
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
    drawn = document.figure("roofline", _drawn(marks, _roofs(run, marks)), caption, columns, list(_rows(marks)))
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


def _drawn(marks: list[Row], roofs: set[tuple[str, float, float]]) -> Figure:
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
