"""Figures of a run, and of a trace before it runs; loading this package loads matplotlib.

Identical input gives identical PNG files.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from ksim.report.plots.energy import composition_figure, energy_figure
from ksim.report.plots.latency import latency_figure, plot_breakdown, plot_changes
from ksim.report.plots.roofline import roofline_figure
from ksim.report.plots.style import looks, write
from ksim.report.plots.timeline import links_figure, shown_links, timeline_figure
from ksim.report.plots.trace import cache_curve_figure, plot_cache_curve, plot_trace, trace_figure
from ksim.results.history import History
from ksim.results.kernels import KernelUsage, families
from ksim.results.numbers import LatencyTargets, Summary
from ksim.results.steps import Bools

__all__ = ["cache_curve_figure", "composition_figure", "energy_figure", "latency_figure", "links_figure",
           "plot_breakdown", "plot_cache_curve", "plot_changes", "plot_trace", "roofline_figure", "save_plots",
           "timeline_figure", "trace_figure"]


def save_plots(history: History, usage: KernelUsage, kernels: pa.Table, directory: Path, limits: LatencyTargets,
               summary: Summary, subject: str) -> list[Path]:
    """Write every figure that the run has data for into *directory*; return the files.

    *kernels* is its table, *summary* its numbers; *subject* is part of each title.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    with looks():
        if history.requests.completed.any():
            figure = latency_figure(history, limits, summary, f"Latency: {subject}")
            files.append(write(figure, directory / "latency.png"))
        if len(history.steps):
            files.append(write(timeline_figure(history, f"Over time: {subject}"), directory / "timeline.png"))
        if history.busy_gpu_seconds > 0:
            for name, pool, which in _compositions(history):
                figure = composition_figure(history, usage, f"Steps{pool}: {subject}", which)
                files.append(write(figure, directory / name))
            files.append(write(roofline_figure(history, usage, f"Roofline: {subject}"),
                               directory / "roofline.png"))
            figure = energy_figure(history, families(kernels), f"Energy: {subject}")
            files.append(write(figure, directory / "energy.png"))
        if shown_links(history):
            files.append(write(links_figure(history, f"Links: {subject}"), directory / "links.png"))
    return files


def _compositions(history: History) -> Iterator[tuple[str, str, Bools | None]]:
    """The file, the pool and the steps of each figure of steps: one figure for each pool that had any."""
    if not history.pools:
        yield "composition.png", "", None
    for place, name in enumerate(history.pools):
        which = history.pool[history.steps.engine] == place
        if which.any():
            yield f"composition-{name}.png", f" of pool {name}", which
