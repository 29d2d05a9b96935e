"""Power of the GPUs over the run, and joules by kernel family.

The composition of steps as their batch grows: kernel families, and the wait for the CPU.
"""

from operator import attrgetter

import numpy as np
from attrs import frozen
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from ksim.report.plots.style import (
    DASHES,
    FAINT,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    PLAIN,
    RED,
    Margins,
    beside,
    boxes,
    canvas,
    decades,
    grid_of,
    linear_ticks,
    percent_axis,
)
from ksim.report.plots.timeline import shown_span
from ksim.report.wording import UP, number, percent
from ksim.results.history import History
from ksim.results.kernels import HOST, IDLE, FamilyShare, KernelUsage
from ksim.results.series import all_static_power, power
from ksim.results.steps import Bools, Floats, Ints, sums

_BINS = 240
#: The number of families that are shown, those with the most energy; the others are shown together.
MOST = 9
_WAITING = {HOST: "waiting for the CPU", IDLE: "nothing to do"}


def energy_figure(history: History, found: list[FamilyShare], title: str = "Energy") -> Figure:
    """Above: static and dynamic watts per GPU over the run, under the limit.  Below: joules of kernel families."""
    bars = largest(found)
    total = sum(row.joules + row.static for row in found)
    figure = canvas(10, 5.6 + 0.28 * len(bars), title,
                    f"{number(total / 1e3)} kJ of {history.gpus} GPU{'s' if history.gpus > 1 else ''}, static power"
                    f" split over kernels by their time{shown_span(history)[1]}", fixed=True)
    names = max([len(_WAITING.get(row.family, row.family)) for row in bars], default=0)
    above, below = grid_of(figure, 2, 1, heights=(3.0, 0.3 + 0.28 * len(bars)),
                           margins=Margins(left=0.35 + 0.075 * names, rows=1.3, bottom=0.4))
    _watts(above, history)
    _families(below, bars)
    return figure


def largest(found: list[FamilyShare]) -> list[FamilyShare]:
    """The families with the most energy; the others are one family."""
    ordered = sorted(found, key=lambda row: (-row.joules - row.static, row.family))
    kept, rest = ordered[:MOST], ordered[MOST:]
    if len(rest) < 2:
        return ordered
    together = FamilyShare(f"{len(rest)} others", *(sum(getattr(row, name) or 0.0 for row in rest)
                                                    for name in ("time", "joules", "static", "energy")))
    return [*kept, together]


def _watts(axes: Axes, history: History) -> None:
    edges = np.linspace(0, shown_span(history)[0], _BINS + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    whole, static = (series.means(edges) / history.gpus for series in (power(history), all_static_power(history)))
    axes.set_title("Watts per GPU")
    beside(axes, f"mean {number(float(whole.mean()))} W, every point the mean over {number(float(edges[1]))} s")
    axes.fill_between(middles, static, color=GREY, linewidth=0, label="static")
    axes.fill_between(middles, static, whole, color=ORANGE, alpha=0.75, linewidth=0, label="dynamic")
    axes.plot(middles, whole, color=ORANGE, linewidth=1.0)
    limit = max(built.limit_watts for built in history.engines)
    linear_ticks(axes)
    if np.isfinite(limit):
        axes.axhline(limit, color=RED, linewidth=1, linestyle=DASHES, label=f"limit {number(limit)} W")
        _peaks(axes, history)
    axes.set_ylim(0, 1.2 * max(float(whole.max()), limit if np.isfinite(limit) else 0.0))
    axes.set_xlim(0, edges[-1])
    axes.set_xlabel("seconds from the start of the run")
    axes.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, -0.18))


def _peaks(axes: Axes, history: History) -> None:
    """A note on steps that exceed the limit, and why they may."""
    watts = history.steps.watts_above_limit
    if len(watts):
        text = (f"{percent(len(watts) / len(history.steps))} of the steps draw more than the limit, up to"
                f" {number(float(watts.max()), UP)} W: the limit holds on average, over some tens of milliseconds")
        axes.text(0.01, 0.985, text, transform=axes.transAxes, va="top", fontsize=8.5, color=RED)


def _families(axes: Axes, bars: list[FamilyShare]) -> None:
    axes.set_title("Joules by kernel family")
    places = np.arange(len(bars), dtype=np.float64)
    static, dynamic = (np.array([getattr(row, name) for row in bars]) for name in ("static", "joules"))
    nothing = np.zeros(len(bars))
    boxes(axes, nothing, static, places - 0.34, places + 0.34, GREY)
    boxes(axes, static, static + dynamic, places - 0.34, places + 0.34, ORANGE)
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.yaxis.set_major_locator(FixedLocator(places.tolist()))
    axes.yaxis.set_major_formatter(FixedFormatter([_WAITING.get(row.family, row.family) for row in bars]))
    axes.tick_params(axis="y", labelcolor=INK)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(PLAIN)
    axes.set_xlim(0, 1.22 * float((static + dynamic).max(initial=0.0)) or 1.0)
    for place, row, joules in zip(places.tolist(), bars, (static + dynamic).tolist(), strict=True):
        axes.annotate(f"{number(joules)} J, {percent(row.energy)}", (joules, place), xytext=(5, 0),
                      textcoords="offset points", va="center", fontsize=8.5, color=FAINT)


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
