"""The roofline: how close each kernel comes to the GPU's peaks of arithmetic and memory."""

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen
from matplotlib.figure import Figure

from ksim.flow.kernels import BOUNDS
from ksim.report.plots.roofs import Mark, Roof, draw_bounds, draw_marks, draw_roofs, label_marks
from ksim.report.plots.style import Margins, beside, canvas, grid_of
from ksim.report.wording import percent
from ksim.results.history import History
from ksim.results.kernel_usage import KernelUsage
from ksim.results.kernels import work_columns

#: Kernels of a run within this distance, in decades, share one label; kernels of a step only if they coincide.
_NEAR, _SAME = 0.3, 0.02


@frozen
class Panel:
    """One step: what it computes, its kernels that fit on a roofline, and their share of its time."""

    title: str
    marks: Sequence[Mark]
    share: float = 1.0


def roofline_figure(history: History, usage: KernelUsage, title: str = "Roofline") -> Figure:
    """Achieved FLOP/s of each kernel over its FLOP per byte, in steps that only decode and in steps with prompts."""
    note = "a mark for every kernel: its area the share of GPU time, its colour what limits it"
    figure = canvas(10, 5.4, title, note, fixed=True)
    with_prompts = history.steps.prefills > 0
    panels = [Panel(title, list(_marks(work_columns(history, usage, which))))
              for title, which in (("Decode steps", ~with_prompts), ("Steps with prompt tokens", with_prompts))]
    roofs = sorted({(e.gpu, e.peak_flops, e.peak_bandwidth) for e in history.engines})
    alone = len(roofs) == 1  # then its name is in the title
    _draw(figure, [Roof("" if alone else name, *peaks) for name, *peaks in roofs], panels,
          margins=Margins(left=0.85, columns=0.9))
    return figure


def step_roofline_figure(title: str, roofs: Sequence[Roof], panels: Sequence[Panel]) -> Figure:
    """FLOP/s of each kernel over its FLOP per byte, a panel for each step."""
    note = "a mark for every kernel: its area the share of the step's time, its colour what limits it"
    if any(mark.low == mark.low for panel in panels for mark in panel.marks):
        note += ", its bar the 90 % interval"
    figure = canvas(1.5 + 5.75 * len(panels), 6.2, title, note)
    _draw(figure, roofs, panels, near=_SAME, room=8.0, name_all=True)
    return figure


def _draw(figure: Figure, roofs: Sequence[Roof], panels: Sequence[Panel], near: float = _NEAR,
          room: float = 100.0, name_all: bool = False, margins: Margins | None = None) -> None:
    every = [mark for panel in panels for mark in panel.marks]
    grid = grid_of(figure, 1, len(panels), margins=margins)
    for axes, panel in zip(grid, panels, strict=True):
        axes.set_title(panel.title)
        if panel.share < 0.9995:
            beside(axes, f"drawn: {percent(panel.share)} of its time")
        draw_roofs(axes, roofs, every, room)
        draw_marks(axes, panel.marks)
    draw_bounds(grid[-1], every)
    for axes, panel in zip(grid, panels, strict=True):
        label_marks(axes, panel.marks, near, name_all)


def _marks(columns: dict[str, Any]) -> Iterator[Mark]:
    """The kernels with both FLOP and bytes, with their intensity and rate."""
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        if row["flops"] > 0 and row["bytes"] > 0 and row["gpu_seconds"] > 0:
            yield Mark(row["label"], row["flops"] / row["bytes"], row["flops"] / row["gpu_seconds"], row["seconds"],
                       max(BOUNDS, key=lambda name: row[f"{name}_share"]))
