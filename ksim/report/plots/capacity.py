"""How a set-up fares as the rate rises: the share of requests within each target, and goodput, with bands."""

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np
from attrs import frozen
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ksim.report.plots.style import DASHES, FAINT, GREY, INK, PALETTE, canvas, grid_of, linear_ticks, percent_axis

#: A value, and the ends of its interval.
Band = tuple[float, float, float]
#: Lines of several targets differ by their dashes.
_DASHED = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)))


@frozen
class Curve:
    """A set-up at several `rates`: goodput, and the attainment of each target.

    `shares` are those that targets ask for, None of a mean.  `highest` is its highest rate, if that was searched for.
    """

    name: str
    rates: Sequence[float]
    goodput: Sequence[Band]
    attainment: Mapping[str, Sequence[Band]]
    shares: Mapping[str, float | None]
    highest: Band | None = None


def capacity_figure(title: str, curves: Sequence[Curve], rate: float | None = None) -> Figure:
    """Attainment above goodput, both over the rate; *rate* is the one that was asked for."""
    figure = canvas(8.6, 6.6, f"Capacity: {title}", "Bands are 95 % intervals of the traffic; hatched is that of the"
                    " highest rate, with the model's error")
    above, below = grid_of(figure, 2, 1, heights=[1.0, 1.0], share_x=True)
    most = max((len(one.attainment) for one in curves), default=1)
    apart = most if most * len(curves) <= len(PALETTE) else 1  # a colour for each target, or for each set-up
    for place, one in enumerate(curves):
        colours = [PALETTE[(place * apart + nth % apart) % len(PALETTE)] for nth in range(most)]
        for nth, (target, bands) in enumerate(one.attainment.items()):
            named = f"{one.name}, {target}" if len(curves) < 4 else "" if nth else one.name
            _line(above, one.rates, bands, colours[nth], _DASHED[nth % len(_DASHED)], named)
        colour = INK if len(curves) == 1 else colours[0]
        _line(below, one.rates, one.goodput, colour, _DASHED[0], one.name)
        if one.highest:
            _highest(above, one, colour, named=len(curves) < 4)
    _finish(above, below, curves, rate)
    return figure


def _highest(axes: Axes, one: Curve, colour: str, named: bool) -> None:
    """The highest rate as a line, and its interval as a hatched column, which may be open: the axis ends before."""
    assert one.highest
    rate, low, high = one.highest
    end = min(high, 2 * max(*one.rates, rate))
    axes.axvspan(low, end, facecolor="none", edgecolor=colour, hatch="///", alpha=0.25, linewidth=0)
    axes.axvline(rate, color=colour, linewidth=1.4, label=f"{one.name}, highest rate" if named else None)


def _finish(above: Axes, below: Axes, curves: Sequence[Curve], rate: float | None) -> None:
    """What the axes say."""
    for share in {share for one in curves for share in one.shares.values() if share is not None}:
        above.axhline(share, color=GREY, linewidth=1.0, linestyle=DASHES)
    most = max((rate for one in curves for rate in [*one.rates, *filter(isfinite, one.highest or ())]),
               default=1.0)
    below.plot([0, most], [0, most], color=GREY, linewidth=1.0, linestyle=DASHES, label="every request")
    if rate is not None:
        for axes, label in ((above, f"{rate:g} requests/s, as asked"), (below, "")):
            axes.axvline(rate, color=FAINT, linewidth=1.0, linestyle=DASHES, label=label or None)
    percent_axis(above)
    linear_ticks(below)
    least = min((band[0] for one in curves for bands in one.attainment.values() for band in bands), default=0.0)
    above.set_ylim(max(0.0, min(least - 0.05, 0.9)), 1.01)
    below.set_ylim(0, 1.05 * most)
    below.set_xlim(0, 1.02 * most)
    above.set_title("Requests within the target")
    below.set_title("Goodput: requests/s within all targets")
    below.set_xlabel("requests/s")
    above.legend(loc="lower left")
    below.legend(loc="upper left")


def _line(axes: Axes, rates: Sequence[float], bands: Sequence[Band], colour: str, dashes: object, label: str) -> None:
    value, low, high = (np.array(column) for column in zip(*bands, strict=True))
    axes.plot(rates, value, color=colour, linestyle=dashes, marker="o", markersize=3, label=label or None)
    axes.fill_between(np.array(rates), low, high, color=colour, alpha=0.15, linewidth=0)
