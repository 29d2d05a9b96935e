"""Power of the GPUs over the run, and joules by kernel family."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator

from ksim.report.plots.style import (
    DASHES,
    FAINT,
    GREY,
    INK,
    ORANGE,
    PLAIN,
    RED,
    Margins,
    beside,
    boxes,
    canvas,
    grid_of,
    linear_ticks,
)
from ksim.report.plots.timeline import shown_span
from ksim.report.wording import UP, number, percent
from ksim.results.history import History
from ksim.results.kernels import HOST, IDLE, FamilyShare
from ksim.results.series import all_static_power, power

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
