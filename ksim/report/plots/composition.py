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
    _durations(above, 1e3 * data.seconds.sum(axis=1))
    _stacks(below, data)
    below.tick_params(axis="x", labelsize=8)
    below.xaxis.set_major_locator(FixedLocator(range(len(data.bins))))
    below.xaxis.set_major_formatter(FixedFormatter(
        [_label(n, c) for n, c in zip(data.bins, data.steps, strict=True)]))
    below.set_xlabel("tokens in the batch, from this number up to twice it (and how many steps had them)")
    for axes in (above, below):
        axes.grid(visible=False, axis="x")
    return figure


def _durations(axes: Axes, milliseconds: Floats) -> None:
    axes.set_title("Milliseconds per step")
    axes.set_yscale("log")
    low, high = 0.5 * float(milliseconds.min()), 4 * float(milliseconds.max())
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(decades(low, high, room=4))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PLAIN)
    axes.plot(milliseconds, "o-", color=INK, markersize=5)
    for place, value in enumerate(milliseconds.tolist()):
        axes.annotate(number(value), (place, value), xytext=(0, 6), textcoords="offset points", ha="center",
                      fontsize=8.5)


def _stacks(axes: Axes, data: Composition) -> None:
    axes.set_title("Share of the step")
    percent_axis(axes)
    axes.set_ylim(0, 1)
    places, shares = np.arange(len(data.bins), dtype=np.float64), data.seconds / data.seconds.sum(axis=1, keepdims=True)
    bottoms = np.cumsum(shares, axis=1) - shares
    for part, colour, share, bottom in zip(data.parts, _colours(data.parts), shares.T, bottoms.T, strict=True):
        boxes(axes, places - 0.37, places + 0.37, bottom, bottom + share, colour, part, edge=0.6)
    axes.set_xlim(-0.6, len(places) - 0.4)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))


def _colours(parts: list[str]) -> list[str]:
    palette = iter(PALETTE)
    return [GREY if part == _HOST else FAINT if part == _OTHER else next(palette) for part in parts]


def _label(exponent: int, steps: int) -> str:
    return f"{2 ** int(exponent):,}\n({steps:,})"
