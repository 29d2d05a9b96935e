"""How often a prefix cache hits, by its size."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ksim.report.plots.style import DASHES, FAINT, PALETTE, canvas, log_axis, looks, percent_axis, write


def plot_cache_curve(path: Path, sizes: Sequence[float], rates: Mapping[str, Sequence[float]],
                     ends: Mapping[str, float], title: str, unit: str) -> Path:
    """Draw `cache_curve_figure` into *path*, a PNG."""
    with looks():
        return write(cache_curve_figure(sizes, rates, ends, title, unit), path)


def cache_curve_figure(sizes: Sequence[float], rates: Mapping[str, Sequence[float]], ends: Mapping[str, float],
                       title: str, unit: str) -> Figure:
    """A line of hit *rates* over rising *sizes*, in *unit*, for each policy; tiers are marked at their *ends*."""
    figure = canvas(8.6, 4.8, f"Prefix cache: {title}", "one cache that sees all requests in order")
    axes = figure.subplots()
    for colour, (policy, shares) in zip(PALETTE, rates.items(), strict=False):
        axes.plot(sizes, shares, color=colour, label=policy, alpha=0.85)
    for name, end in ends.items():
        axes.axvline(end, color=FAINT, linewidth=1, linestyle=DASHES)
        axes.text(end, 0.99, f"{name} ", transform=axes.get_xaxis_transform(), ha="right", va="top", color=FAINT,
                  fontsize=8.5, rotation=90)
    axes.set_title("Hits, share of prompt tokens")
    axes.set_xlabel(f"{unit} (logarithmic)")
    log_axis(axes, min(sizes), max(sizes[-1], 1.01 * sizes[0]), room=9)
    percent_axis(axes)
    axes.legend(loc="upper left")
    return figure
