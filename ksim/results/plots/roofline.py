"""The roofline: how close each kernel comes to what the GPU's arithmetic and memory allow."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ksim.results.history import History
from ksim.results.kernels import BOUNDS, kernel_columns
from ksim.results.occurrences import Occurrences
from ksim.results.plots.style import BOUND_COLOURS, FAINT, GREY, INK, canvas, grid_of

Row = dict[str, Any]

_LARGEST = 900.0
#: Marks closer than this, in decades either way, share one label.
_NEAR = 0.3
_NAMES = 2
#: Marks that together take less of the time have no label.
_SMALL = 0.01
#: One label is this factor of FLOP/s under the other.
_LINE = 2.0
_LEADER = {"arrowstyle": "-", "color": GREY, "linewidth": 0.7}


def roofline_figure(history: History, occurrences: Occurrences) -> Figure:
    """Achieved FLOP/s of each kernel over its FLOP per byte, in steps that only decode and in steps with prompts."""
    note = "a mark for every kernel: its area the share of GPU time, its colour what limits it"
    figure = canvas(10, 5.4, "Roofline", note)
    with_prompts = history.steps.prefills > 0
    panels = [(title, list(_points(kernel_columns(history, occurrences, which))))
              for title, which in (("Decode steps", ~with_prompts), ("Steps with prompt tokens", with_prompts))]
    every = [row for _, rows in panels for row in rows]
    for axes, (title, rows) in zip(grid_of(figure, 1, 2), panels, strict=True):
        axes.set_title(title)
        axes.set_xlabel("FLOP per byte")
        axes.set_ylabel("FLOP/s of one GPU")
        _roofs(axes, history, every)
        _marks(axes, rows)
    bounds = [bound for bound in BOUNDS if any(row["bound"] == bound for row in every)]
    marks = [Line2D([], [], marker="o", linestyle="", markersize=8, color=BOUND_COLOURS[b], label=b) for b in bounds]
    axes.legend(handles=marks, loc="lower right", title="limited by", alignment="left")
    return figure


def _points(columns: dict[str, Any]) -> Iterator[Row]:
    """The kernels that compute and move something, with their intensity and rate."""
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        if row["flops"] > 0 and row["bytes"] > 0 and row["gpu_seconds"] > 0:
            row["intensity"], row["rate"] = row["flops"] / row["bytes"], row["flops"] / row["gpu_seconds"]
            row["bound"] = max(BOUNDS, key=lambda name: row[f"{name}_share"])
            yield row


def _roofs(axes: Axes, history: History, rows: Sequence[Row]) -> None:
    """What arithmetic and memory allow, and room around the marks."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    roofs = sorted({(e.gpu, e.peak_flops, e.peak_bandwidth) for e in history.engines})
    ridge = max(flops / bandwidth for _, flops, bandwidth in roofs)
    left = min([row["intensity"] for row in rows] + [ridge / 100]) / 4
    right = max([row["intensity"] for row in rows] + [ridge]) * 100
    intensity = np.geomspace(left, right, 300)
    for gpu, flops, bandwidth in roofs:
        axes.plot(intensity, np.minimum(flops, bandwidth * intensity), color=INK, linewidth=1.3)
        axes.annotate(f"{gpu}, {flops / 1e12:,.0f} TFLOP/s", (right, flops), xytext=(0, 4), ha="right",
                      textcoords="offset points", fontsize=8.5, color=FAINT)
        middle = (left * flops / bandwidth) ** 0.5
        axes.annotate(f"{bandwidth / 1e12:.1f} TB/s", (middle, bandwidth * middle), xytext=(-7, 3), ha="right",
                      textcoords="offset points", fontsize=8.5, color=FAINT)
    axes.set_xlim(left, right)
    lowest = min([row["rate"] for row in rows] + [bandwidth * left for _, _, bandwidth in roofs])
    axes.set_ylim(lowest / 6, 3 * max(flops for _, flops, _ in roofs))


def _marks(axes: Axes, rows: Sequence[Row]) -> None:
    total = sum(row["seconds"] for row in rows)
    ordered = sorted(rows, key=lambda row: (-row["seconds"], row["label"]))
    for row in ordered:
        area = max(14.0, _LARGEST * row["seconds"] / total)
        axes.scatter(row["intensity"], row["rate"], s=area, alpha=0.8, color=BOUND_COLOURS[row["bound"]],
                     edgecolor="white", linewidth=0.8, zorder=3)
    clusters = _clusters(ordered)
    _labels(axes, [cluster for cluster in clusters if sum(row["seconds"] for row in cluster) >= _SMALL * total])


def _labels(axes: Axes, clusters: Sequence[Sequence[Row]]) -> None:
    """Name the marks to their right, one line under the other."""
    below = float("inf")
    for cluster in sorted(clusters, key=lambda cluster: -cluster[0]["rate"]):
        names, first = [str(row["label"]) for row in cluster], cluster[0]
        text = ", ".join(names[:_NAMES]) + (f" +{len(names) - _NAMES}" if len(names) > _NAMES else "")
        below = min(first["rate"], below) / _LINE
        axes.annotate(text, (first["intensity"], first["rate"]), xytext=(2 * first["intensity"], below), va="center",
                      fontsize=8.5, color=INK, zorder=4, arrowprops=_LEADER)


def _clusters(rows: Sequence[Row]) -> list[list[Row]]:
    """Marks that one label can stand for, each cluster's longest first."""
    clusters: list[list[Row]] = []
    for row in rows:
        near = next((cluster for cluster in clusters if _distance(row, cluster[0]) < _NEAR), None)
        clusters.append([row]) if near is None else near.append(row)
    return clusters


def _distance(one: Row, other: Row) -> float:
    """How far apart two marks are, in decades."""
    return float(max(abs(np.log10(one[name] / other[name])) for name in ("intensity", "rate")))
