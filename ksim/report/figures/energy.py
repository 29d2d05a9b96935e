"""Power of the GPUs over the run, and joules by kernel family.

The composition of steps as their batch grows: kernel families, and the wait for the CPU.
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter

import numpy as np
from attrs import frozen

from ksim.report.charts import (
    BLUE,
    FAINT,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    RED,
    Axis,
    Bars,
    Line,
    Margins,
    Mark,
    Panel,
    Rule,
    Text,
    reach,
)
from ksim.report.figures import Picture
from ksim.report.wording import UP, number, percent
from ksim.results.history import History
from ksim.results.kernels import HOST, IDLE, FamilyShare, KernelUsage
from ksim.results.series import all_static_power, power
from ksim.results.steps import Bools, Floats, Ints, sums

SECONDS = "seconds from the start of the run"
_BINS = 240
#: The number of families that are shown, those with the most energy; the others are shown together.
MOST = 9
#: What is said of the rows of the table of kernels that are none.
WAITING = {HOST: "waiting for the CPU", IDLE: "nothing to do"}


def shown_span(history: History) -> tuple[float, str]:
    """The time up to which figures show the run, and a note if that leaves out a few requests long after all others."""
    requests = history.requests
    moments = np.concatenate([requests.arrival, requests.last_token[requests.output > 0]])
    end = reach(moments, room=1.1)
    if not 0 < end < 0.9 * history.duration:
        return history.duration or 1.0, ""
    late = int((np.fmax(requests.arrival, requests.last_token) > end).sum())
    return end, f"; beyond the axis: {late:,} of {len(requests):,} requests, the last at {number(history.duration)} s"


def energy_chart(history: History, found: list[FamilyShare], title: str = "Energy") -> Picture:
    """Above: static and dynamic watts per GPU over the run, under the limit.  Below: joules of kernel families."""
    bars = largest(found)
    total = sum(row.joules + row.static for row in found)
    note = (f"{number(total / 1e3)} kJ of {history.gpus} GPU{'s' if history.gpus > 1 else ''}, static power split over"
            f" kernels by their time{shown_span(history)[1]}")
    left = 0.35 + 0.075 * max([len(name_of(row)) for row in bars], default=0)
    return Picture(title, [_watts(history), _joules(bars)], note, 10, 5.6 + 0.28 * len(bars),
                 margins=Margins(left=left, rows=1.3, bottom=0.4))


def name_of(row: FamilyShare) -> str:
    """The name of a family as figures have it."""
    return WAITING.get(row.family, row.family)


def largest(found: list[FamilyShare]) -> list[FamilyShare]:
    """The families with the most energy; the others are one family."""
    ordered = sorted(found, key=lambda row: (-row.joules - row.static, row.family))
    kept, rest = ordered[:MOST], ordered[MOST:]
    if len(rest) < 2:
        return ordered
    together = FamilyShare(f"{len(rest)} others", *(sum(getattr(row, name) or 0.0 for row in rest)
                                                    for name in ("time", "joules", "static", "energy")))
    return [*kept, together]


def shares_chart(found: Sequence[FamilyShare]) -> Picture:
    """The shares of families of the run's GPU time and of its energy, side by side."""
    marks = [Bars(np.arange(len(found)) + shift, [getattr(row, name) or 0.0 for row in found], name, colour,
                  thickness=0.34, hover=f"%{{customdata:.1%}} of the {name}")
             for name, colour, shift in (("time", BLUE, -0.17), ("energy", ORANGE, 0.17))]
    most = max([max(mark.lengths) for mark in marks if len(mark.lengths)], default=0.0)
    return Picture("", [Panel("", Axis("share of all", 0, 1.05 * most or 1.0, percent=True),
                            Axis.names([*map(name_of, found)]), marks, legend="above")])


def _watts(history: History) -> Panel:
    edges = np.linspace(0, shown_span(history)[0], _BINS + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    whole, static = (series.means(edges) / history.gpus for series in (power(history), all_static_power(history)))
    limit = max(built.limit_watts for built in history.engines)
    marks: list[Mark] = [Line(middles, whole, "dynamic", ORANGE, width=1.0, area=0.75),
                         Line(middles, static, "static", GREY, width=1.0, area=1.0)]
    if np.isfinite(limit):
        marks += [Rule(limit, RED, across=True, name=f"limit {number(limit)} W"), *_peaks(history)]
    top = 1.2 * max(float(whole.max()), limit if np.isfinite(limit) else 0.0)
    return Panel("Watts per GPU", Axis(SECONDS, 0, edges[-1]), Axis("", 0, top, most=5), marks,
                 f"mean {number(float(whole.mean()))} W, every point the mean over {number(float(edges[1]))} s",
                 "below", tall=3.0)


def _peaks(history: History) -> Iterator[Text]:
    """A note on steps that exceed the limit, and why they may."""
    watts = history.steps.watts_above_limit
    if len(watts):
        yield Text(f"{percent(len(watts) / len(history.steps))} of the steps draw more than the limit, up to"
                   f" {number(float(watts.max()), UP)} W: the limit holds on average, over some tens of milliseconds",
                   0.01, 0.985, RED, "panel", valign="top")


def _joules(bars: list[FamilyShare]) -> Panel:
    places = np.arange(len(bars))
    static, dynamic = (np.array([getattr(row, name) for row in bars], dtype=float) for name in ("static", "joules"))
    texts = [f"{number(joules)} J, {percent(row.energy)}"
             for row, joules in zip(bars, (static + dynamic).tolist(), strict=True)]
    return Panel("Joules by kernel family", Axis("", 0, 1.22 * float((static + dynamic).max(initial=0.0)) or 1.0,
                                                 most=6), Axis.names([*map(name_of, bars)]),
                 [Bars(places, static, "static", GREY, thickness=0.68),
                  Bars(places, dynamic, "dynamic", ORANGE, static, texts, thickness=0.68)],
                 tall=0.3 + 0.28 * len(bars))


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
    parts = [names[i] for i in kept] + ([_OTHER] if rest else []) + [WAITING[HOST]]
    return Composition(present, counts, parts, grouped / counts[:, None])


def composition_chart(history: History, usage: KernelUsage, title: str = "Steps",
                      which: Bools | None = None) -> Picture:
    """Steps by the tokens in their batch: their duration above, the shares of kernel families and host below."""
    data = composition(history, usage, which)
    ticks = {place: f"{2 ** exponent:,}\n({steps:,})" for place, exponent, steps in zip(
        data.places.tolist(), data.bins.tolist(), data.steps.tolist(), strict=True)}
    x = Axis("tokens in the batch, from this number up to twice it (and how many steps had them)", -0.6,
             float(data.places[-1]) + 0.6, ticks=ticks, grid=False)
    return Picture(title, [_durations(data, x), _stacks(data, x)], "what a step is made of: means over the steps with"
                 " about as many tokens in a batch", 10, 6.2, shared=True,
                 margins=Margins(right=0.75 + 0.085 * max(map(len, data.parts)), rows=0.45, bottom=0.8))


def _durations(data: Composition, x: Axis) -> Panel:
    milliseconds = 1e3 * data.seconds.sum(axis=1)
    marks: list[Mark] = [
        Line(data.places[part], milliseconds[part], colour=INK, dots=5.0)
        for part in np.split(np.arange(len(data.bins)), 1 + np.flatnonzero(np.diff(data.bins) > 1))]
    marks += [Text(number(value), place, value, INK, align="center", shift=(0, 6))
              for place, value in zip(data.places.tolist(), milliseconds.tolist(), strict=True)]
    return Panel("Milliseconds per step", x, Axis.log("", 0.5 * float(milliseconds.min()),
                                                      4 * float(milliseconds.max()), 4), marks)


def _stacks(data: Composition, x: Axis) -> Panel:
    shares = data.seconds / data.seconds.sum(axis=1, keepdims=True)
    begins = np.cumsum(shares, axis=1) - shares
    marks: list[Mark] = [Bars(data.places, share, part, colour, begin, across=False, thickness=0.74)
                         for part, colour, share, begin in zip(data.parts, _colours(data.parts), shares.T, begins.T,
                                                               strict=True)]
    marks += [Text("no steps between", place - 1, 0.5, align="center", valign="center", upright=True)
              for place in data.places[1:][np.diff(data.bins) > 1].tolist()]
    return Panel("Share of the step", x, Axis("", 0, 1, percent=True, most=5), marks, legend="right", tall=2.2)


def _colours(parts: list[str]) -> list[str]:
    palette = iter(PALETTE)
    return [GREY if part == WAITING[HOST] else FAINT if part == _OTHER else next(palette) for part in parts]
