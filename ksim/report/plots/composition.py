"""The composition of steps as their batch grows: kernel families, and the wait for the CPU."""

from operator import attrgetter

import numpy as np
from attrs import frozen
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from ksim.report.plots.style import (
    FAINT,
    GREY,
    INK,
    PALETTE,
    PLAIN,
    Margins,
    boxes,
    canvas,
    decades,
    grid_of,
    percent_axis,
)
from ksim.report.wording import number
from ksim.results.arrays import Bools, Floats, Ints, sums
from ksim.results.history import History
from ksim.results.kernel_usage import KernelUsage

_HOST = "waiting for the CPU"
_OTHER = "other"
#: Families with a smaller share of all GPU time are shown together.
_SMALL = 0.005


@frozen(eq=False)
class Composition:
    """Mean seconds per step, (bins, parts), of the steps whose batch tokens fall in each bin [2^n, 2^(n+1))."""

    bins: Ints
    steps: Ints
    parts: list[str]
    seconds: Floats

    @property
    def places(self) -> Ints:
        """Where the bins are on the axis: those that no step fell into are gaps, of one place however many they are."""
        return np.cumsum(np.minimum(np.diff(self.bins, prepend=self.bins[:1]), 2))


def composition(history: History, usage: KernelUsage, which: Bools | None = None) -> Composition:
    """Bin the steps in *which*, by default all, by the tokens in their batch, leaving out empty bins.

    The largest part is first, the host last.
    """
    some = slice(None) if which is None else which
    names, seconds = usage.seconds_by(attrgetter("family"))
    seconds = seconds[some]
    totals = seconds.sum(axis=0)
    order = sorted(range(len(names)), key=lambda i: (-totals[i], names[i]))
    large = sum(1 for i in order[: len(PALETTE)] if totals[i] >= _SMALL * totals.sum())
    kept, rest = order[:large], order[large:]
    columns = [seconds[:, i] for i in kept] + ([seconds[:, rest].sum(axis=1)] if rest else [])
    columns.append(history.host_waits[some])
    bins = np.log2(np.maximum(history.steps.tokens[some], 1)).astype(np.int64)
    present, place = np.unique(bins, return_inverse=True)
    counts = np.bincount(place, minlength=len(present))
    grouped = np.stack([sums(place, column, len(present)) for column in columns], axis=1)
    parts = [names[i] for i in kept] + ([_OTHER] if rest else []) + [_HOST]
    return Composition(present, counts, parts, grouped / counts[:, None])


def composition_figure(history: History, usage: KernelUsage, title: str = "Steps",
                       which: Bools | None = None) -> Figure:
    """Steps by the tokens in their batch: their duration above, the shares of kernel families and host below."""
    data = composition(history, usage, which)
    figure = canvas(10, 6.2, title, "what a step is made of: means over the steps with about as many tokens in a batch",
                    fixed=True)
    legend = 0.75 + 0.085 * max(map(len, data.parts))
    above, below = grid_of(figure, 2, 1, heights=(1, 2.2), share_x=True,
                           margins=Margins(right=legend, rows=0.45, bottom=0.75))
    below.xaxis.set_label_coords(0.5, -0.16)
    _durations(above, data)
    _stacks(below, data)
    below.tick_params(axis="x", labelsize=8)
    below.xaxis.set_major_locator(FixedLocator(data.places.tolist()))
    below.xaxis.set_major_formatter(FixedFormatter(
        [_label(n, c) for n, c in zip(data.bins, data.steps, strict=True)]))
    _gaps(below, data)
    below.set_xlabel("tokens in the batch, from this number up to twice it (and how many steps had them)")
    for axes in (above, below):
        axes.grid(visible=False, axis="x")
    return figure


def _gaps(axes: Axes, data: Composition) -> None:
    """Say between which bins there were none."""
    for place in data.places[1:][np.diff(data.bins) > 1].tolist():
        axes.text(place - 1, 0.5, "no steps between", rotation=90, ha="center", va="center", fontsize=8.5, color=FAINT)


def _durations(axes: Axes, data: Composition) -> None:
    milliseconds = 1e3 * data.seconds.sum(axis=1)
    axes.set_title("Milliseconds per step")
    axes.set_yscale("log")
    low, high = 0.5 * float(milliseconds.min()), 4 * float(milliseconds.max())
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(decades(low, high, room=4))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PLAIN)
    for part in np.split(np.arange(len(data.bins)), 1 + np.flatnonzero(np.diff(data.bins) > 1)):
        axes.plot(data.places[part], milliseconds[part], "o-", color=INK, markersize=5)
    for place, value in zip(data.places.tolist(), milliseconds.tolist(), strict=True):
        axes.annotate(number(value), (place, value), xytext=(0, 6), textcoords="offset points", ha="center",
                      fontsize=8.5)


def _stacks(axes: Axes, data: Composition) -> None:
    axes.set_title("Share of the step")
    percent_axis(axes)
    axes.set_ylim(0, 1)
    places, shares = data.places.astype(np.float64), data.seconds / data.seconds.sum(axis=1, keepdims=True)
    bottoms = np.cumsum(shares, axis=1) - shares
    for part, colour, share, bottom in zip(data.parts, _colours(data.parts), shares.T, bottoms.T, strict=True):
        boxes(axes, places - 0.37, places + 0.37, bottom, bottom + share, colour, part, edge=0.6)
    axes.set_xlim(-0.6, places[-1] + 0.6)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))


def _colours(parts: list[str]) -> list[str]:
    palette = iter(PALETTE)
    return [GREY if part == _HOST else FAINT if part == _OTHER else next(palette) for part in parts]


def _label(exponent: int, steps: int) -> str:
    return f"{2 ** int(exponent):,}\n({steps:,})"
