"""Kernels: the roofline, the map of how far families are from it on each GPU, their energy, and what steps are made of.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isnan, log10, nan, sqrt
from operator import attrgetter
from typing import Any

import numpy as np
from attrs import evolve, frozen

from ksim.flow.events import EngineBuilt
from ksim.flow.steps import BOUNDS
from ksim.results.history import History
from ksim.results.kernels import HOST, IDLE, FamilyShare, KernelUsage, work_columns
from ksim.results.series import all_static_power, power
from ksim.results.steps import Bools, Floats, Ints, sums
from ksim.views.charts import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    RED,
    Axis,
    Bars,
    Dots,
    Margins,
    Mark,
    Panel,
    Polyline,
    RuleLine,
    Span,
    Text,
    plain,
    reach,
)
from ksim.views.figures import Picture
from ksim.views.wording import UP, number, percent

BOUND_COLOURS = {"memory": BLUE, "compute": ORANGE, "communication": PURPLE, "launch": GREY}
#: Diameters of marks, in points, of the whole time and at least.
_LARGEST, _SMALLEST = 30.0, 3.7
#: Kernels of a run within this distance, in decades, share one label; kernels of a step only if they coincide.
_NEAR, _SAME = 0.1, 0.02
_NAMES = 2


@frozen
class Roof:
    """Peaks of one GPU, or of one of its number formats: FLOP/s and bytes/s.  It needs a name if there are several."""

    name: str
    flops: float
    bandwidth: float


@frozen
class KernelMark:
    """A kernel: FLOP per byte, FLOP/s with the ends of its interval (nan if unknown), time and bound.

    `said` is told of it on a page.
    """

    label: str
    intensity: float
    rate: float
    seconds: float
    bound: str
    low: float = nan
    high: float = nan
    said: str = ""


def roofs_of(built: Sequence[tuple[str, float, float]]) -> list[Roof]:
    """The peaks of GPUs; one alone has no name, which is in the title."""
    roofs = sorted(set(built))
    return [Roof("" if len(roofs) == 1 else name, *peaks) for name, *peaks in roofs]


def bound_of(row: Mapping[str, Any]) -> str:
    """What limits most of the time of a kernel, a row of the table of kernels."""
    return max(BOUNDS, key=lambda name: row[f"{name}_share"] or 0.0)


def marks_of(rows: Iterator[Mapping[str, Any]] | Sequence[Mapping[str, Any]]) -> Iterator[KernelMark]:
    """The kernels with both FLOP and bytes, with their intensity and rate."""
    for row in rows:
        if row["flops"] and row["bytes"] and row["gpu_seconds"]:
            said = (f"{row['label']} ({row['family']}): {percent(row['run_share'])} of the run,"
                    f" {percent(row['flops_share'])} of peak FLOP/s, {percent(row['bandwidth_share'])} of peak bytes/s"
                    ) if "run_share" in row else ""
            yield KernelMark(row["label"], row["flops"] / row["bytes"], row["flops"] / row["gpu_seconds"],
                             row["seconds"], bound_of(row), said=said)


@frozen
class StepMarks:
    """What a panel shows: its title, its kernels that fit on a roofline, and their share of its time.

    It may have `roofs` of its own, those of the GPUs that ran it.
    """

    title: str
    marks: Sequence[KernelMark]
    share: float = 1.0
    roofs: Sequence[Roof] = ()


def roofline_panel(step: StepMarks, roofs: Sequence[Roof], every: Sequence[KernelMark], near: float = _NEAR,
                   room: float = 100.0, least: float = 0.0) -> Panel:
    """A roofline: an axis for *every* mark with *room* to the right, and names that marks *near* each other share.

    Kernels with less than the *least* share of the time have no name.
    """
    roofs = step.roofs or roofs
    ridge = max(roof.flops / roof.bandwidth for roof in roofs)
    left = min([mark.intensity for mark in every] + [ridge / 100]) / 4
    right = max([mark.intensity for mark in every] + [ridge]) * room
    bottom = min([mark.rate for mark in every] + [roof.bandwidth * left for roof in roofs]) / 6
    top = 3 * max(roof.flops for roof in roofs)
    beside = "" if step.share >= 0.9995 else f"drawn: {percent(step.share)} of its time"
    return Panel(step.title, Axis.log("FLOP per byte", left, right), Axis.log("FLOP/s of one GPU", bottom, top,
                                                                              prefixed=True),
                 [*_roofs(roofs, left, right), *_dots(step.marks, near, least)], beside, "above", "limited by")


def _roofs(roofs: Sequence[Roof], left: float, right: float) -> Iterator[Mark]:
    for roof in roofs:
        x = np.array([left, roof.flops / roof.bandwidth, 1e3 * right])  # straight lines on logarithmic scales
        name = f"{roof.name}, " if roof.name else ""
        yield Polyline(x, np.minimum(roof.flops, roof.bandwidth * x), colour=INK, width=1.3,
                       hover=f"{name}{roof.flops / 1e12:,.0f} TFLOP/s, {roof.bandwidth / 1e12:.1f} TB/s")
        yield Text(f"{name}{roof.flops / 1e12:,.0f} TFLOP/s", right, roof.flops, align="right", shift=(0, 4))
    for bandwidth in sorted({roof.bandwidth for roof in roofs}):
        middle = (left * min(roof.flops for roof in roofs) / bandwidth) ** 0.5
        yield Text(f"{bandwidth / 1e12:.1f} TB/s", middle, bandwidth * middle, align="right", shift=(-7, 3))


def _dots(marks: Sequence[KernelMark], near: float, least: float) -> Iterator[Dots]:
    """The kernels by their bound, the largest first: the area of each is its share of the time."""
    total = sum(mark.seconds for mark in marks)
    names = _names(sorted(marks, key=lambda mark: (-mark.seconds, mark.label)), near, least * total)
    for bound in BOUNDS:
        own = [mark for mark in names if mark.bound == bound]
        if own:
            yield Dots([mark.intensity for mark in own], [mark.rate for mark in own], bound, BOUND_COLOURS[bound],
                       [max(_SMALLEST, _LARGEST * sqrt(mark.seconds / total)) for mark in own], opacity=0.8,
                       texts=[names[mark] for mark in own], low=[mark.low for mark in own],
                       high=[mark.high for mark in own], hover=[mark.said or mark.label for mark in own])


def _names(marks: Sequence[KernelMark], near: float, least: float) -> dict[KernelMark, str]:
    """What stands beside each mark: those near each other share a text, which stands at the one with most time."""
    clusters: list[list[KernelMark]] = []
    for mark in marks:
        close = next((cluster for cluster in clusters if _distance(mark, cluster[0]) < near), None)
        clusters.append([mark]) if close is None else close.append(mark)
    texts = dict.fromkeys(marks, "")
    for first, *others in clusters:
        names = list(dict.fromkeys(mark.label for mark in (first, *others)))
        more = f" +{len(names) - _NAMES}" if len(names) > _NAMES else ""
        if first.seconds >= least:
            texts[first] = ", ".join(names[:_NAMES]) + more
    return texts


def _distance(one: KernelMark, other: KernelMark) -> float:
    """The distance of two marks, in decades."""
    return max(abs(log10(one.intensity / other.intensity)), abs(log10(one.rate / other.rate)))


def run_roofline(history: History, usage: KernelUsage, title: str = "Roofline") -> Picture:
    """Rooflines of a run, one for steps that only decode and one for steps with prompts; with pools, one for each.

    A mark for each kernel shows the FLOP/s that it achieved over its FLOP per byte.
    """
    note = ("a mark for every kernel: its area the share of GPU time, its colour what limits it; marks in one place"
            " share a label")
    steps = [StepMarks(name, list(marks_of(_rows(work_columns(usage, which)))), roofs=_peaks(engines))
             for name, which, engines in _kinds(history)]
    return Picture(title, _panels(steps, _peaks(history.engines)), note, max(10, 5 * len(steps)), 5.4, len(steps),
                   Margins(left=0.85, columns=0.9))


def _peaks(engines: Sequence[EngineBuilt]) -> list[Roof]:
    return roofs_of([(built.gpu, built.peak_flops, built.peak_bandwidth) for built in engines])


def _rows(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _kinds(history: History) -> Iterator[tuple[str, Bools, Sequence[EngineBuilt]]]:
    """The title of each panel, its steps, and the engines that have roofs of their own in it."""
    if history.pools:
        for index, name in enumerate(history.pools):
            engines = [built for built in history.engines if built.pool == name]
            yield f"Steps of pool {name}", history.pool[history.steps.engine] == index, engines
    else:
        with_prompts = history.steps.prefills > 0
        yield from (("Decode steps", ~with_prompts, ()), ("Steps with prompt tokens", with_prompts, ()))


def step_roofline(title: str, roofs: Sequence[Roof], steps: Sequence[StepMarks]) -> Picture:
    """Rooflines of *steps*, a panel for each: FLOP/s of each kernel over its FLOP per byte."""
    note = "a mark for every kernel: its area the share of the step's time, its colour what limits it"
    if any(not isnan(mark.low) for step in steps for mark in step.marks):
        note += ", its bar the 90 % interval"
    return Picture(title, _panels(steps, roofs, near=_SAME, room=8.0), note, 1.5 + 5.75 * len(steps), 6.2, len(steps))


def _panels(steps: Sequence[StepMarks], roofs: Sequence[Roof], **more: float) -> list[Panel]:
    """A panel for each of *steps*; the last one names the bounds of all."""
    every = [mark for step in steps for mark in step.marks]
    made = [roofline_panel(step, roofs, every, **more) for step in steps]
    bounds = [bound for bound in BOUNDS if any(mark.bound == bound for mark in every)]
    named = {mark.name: mark for mark in made[-1].marks if isinstance(mark, Dots)}
    dots = [named.get(bound, Dots([], [], bound, BOUND_COLOURS[bound])) for bound in bounds]
    marks = [*(mark for mark in made[-1].marks if not isinstance(mark, Dots)), *dots]
    return [*(evolve(one, legend="") for one in made[:-1]), evolve(made[-1], marks=marks, legend="lower right")]


_LARGEST_DOT, _SMALLEST_DOT = 30.0, 4.5
#: Zones without a colour of their own are between safe and danger.
_COLOURS = {"safe": GREEN, "danger": RED}
_TICKS = (1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 200)
#: The lower ends of the axes.  Below 1, a kernel beats its roof, which caches make possible.
_LEAST = 0.88


@frozen
class FamilyMark:
    """A family of kernels: eta over all GPUs, its minimum and maximum, and the family's share of the step's time."""

    name: str
    eta: float
    low: float
    high: float
    share: float


@frozen
class ZoneArea:
    """A zone: its lower bounds in eta and in spread."""

    name: str
    eta: tuple[float, float]
    spread: tuple[float, float]


def eta_map(title: str, gpus: Sequence[str], steps: Mapping[str, Sequence[FamilyMark]],
            zones: Sequence[ZoneArea]) -> Picture:
    """The spread of eta over *gpus*, over its size; a panel for each step."""
    width = 1.5 + 5.75 * len(steps)
    every = [mark for marks in steps.values() for mark in marks]
    x = _rooted("eta: time over the roofline's, geometric mean over GPUs",
                min([_LEAST, *(0.95 * mark.low for mark in every)]),
                max([6.0, *(1.1 * mark.high for mark in every)]))
    y = _rooted("spread of eta: the largest GPU's over the smallest", _LEAST,
                max([4.0, *(2.5 * mark.high / mark.low for mark in every)]))
    panels = [Panel(step, x, y, [*_zones(zones, x, y), *_families(marks)]) for step, marks in steps.items()]
    return Picture(title, panels, "a mark for every family: its area the share of the step's time, its line from the"
                   " least eta to the largest", width, 6.4, len(steps),
                   footer=textwrap.fill(f"GPUs: {', '.join(gpus)}", int(13 * width)))


def _rooted(title: str, low: float, high: float) -> Axis:
    return Axis(title, low, high, "root", {tick: plain(tick) for tick in _TICKS if low < tick < high}, grid=False)


def _zones(zones: Sequence[ZoneArea], x: Axis, y: Axis) -> Iterator[Mark]:
    """Shade and name each zone, in the corner where marks are least likely."""
    left, right, bottom, top = (float(end or 0.0) for end in (x.low, x.high, y.low, y.high))
    for zone in zones:
        x0, x1 = max(left, zone.eta[0]), min(right, zone.eta[1])
        y0, y1 = max(bottom, zone.spread[0]), min(top, zone.spread[1])
        colour = _COLOURS.get(zone.name, ORANGE)
        yield Span(x0, x1, colour, opacity=0.13 if zone.name in _COLOURS else 0.06, ends=(y0, y1))
        at_left, last = zone.eta[0] <= left, zone.spread[0] > bottom or zone.eta[0] <= left
        yield Text(zone.name, x0 if at_left else x1, y1 if last else y0, colour, size=10, bold=True,
                   align="left" if at_left else "right", valign="top" if last else "bottom",
                   shift=(7 if at_left else -7, -7 if last else 7))
    for across, ends in ((False, {edge for zone in zones for edge in zone.eta if left < edge < right}),
                         (True, {edge for zone in zones for edge in zone.spread if bottom < edge < top})):
        yield from (RuleLine(edge, GREY, across, width=0.9) for edge in sorted(ends - {inf}))


def _families(marks: Sequence[FamilyMark]) -> Iterator[Mark]:
    marks = sorted(marks, key=lambda mark: -mark.share)
    for mark in marks:
        yield Polyline([mark.low, mark.high], [mark.high / mark.low] * 2, colour=GREY, width=0.9)
    yield Dots([mark.eta for mark in marks], [mark.high / mark.low for mark in marks], "", BLUE,
               [max(_SMALLEST_DOT, _LARGEST_DOT * sqrt(mark.share)) for mark in marks], opacity=0.8,
               texts=[mark.name for mark in marks])


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
    marks: list[Mark] = [Polyline(middles, whole, "dynamic", ORANGE, width=1.0, area=0.75),
                         Polyline(middles, static, "static", GREY, width=1.0, area=1.0)]
    if np.isfinite(limit):
        marks += [RuleLine(limit, RED, across=True, name=f"limit {number(limit)} W"), *_above_limit(history)]
    top = 1.2 * max(float(whole.max()), limit if np.isfinite(limit) else 0.0)
    return Panel("Watts per GPU", Axis(SECONDS, 0, edges[-1]), Axis("", 0, top, most=5), marks,
                 f"mean {number(float(whole.mean()))} W, every point the mean over {number(float(edges[1]))} s",
                 "below", tall=3.0)


def _above_limit(history: History) -> Iterator[Text]:
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
    present, index = np.unique(bins, return_inverse=True)
    counts = np.bincount(index, minlength=len(present))
    grouped = np.stack([sums(index, column, len(present)) for column in columns], axis=1)
    parts = [names[i] for i in kept] + ([_OTHER] if rest else []) + [WAITING[HOST]]
    return Composition(present, counts, parts, grouped / counts[:, None])


def composition_chart(history: History, usage: KernelUsage, title: str = "Steps",
                      which: Bools | None = None) -> Picture:
    """Steps by the tokens in their batch: their duration above, the shares of kernel families and host below."""
    data = composition(history, usage, which)
    ticks = {index: f"{2 ** exponent:,}\n({steps:,})" for index, exponent, steps in zip(
        data.places.tolist(), data.bins.tolist(), data.steps.tolist(), strict=True)}
    x = Axis("tokens in the batch, from this number up to twice it (and how many steps had them)", -0.6,
             float(data.places[-1]) + 0.6, ticks=ticks, grid=False)
    return Picture(title, [_durations(data, x), _stacks(data, x)], "what a step is made of: means over the steps with"
                   " about as many tokens in a batch", 10, 6.2, shared=True,
                   margins=Margins(right=0.75 + 0.085 * max(map(len, data.parts)), rows=0.45, bottom=0.8))


def _durations(data: Composition, x: Axis) -> Panel:
    milliseconds = 1e3 * data.seconds.sum(axis=1)
    marks: list[Mark] = [
        Polyline(data.places[part], milliseconds[part], colour=INK, dots=5.0)
        for part in np.split(np.arange(len(data.bins)), 1 + np.flatnonzero(np.diff(data.bins) > 1))]
    marks += [Text(number(value), index, value, INK, align="center", shift=(0, 6))
              for index, value in zip(data.places.tolist(), milliseconds.tolist(), strict=True)]
    return Panel("Milliseconds per step", x, Axis.log("", 0.5 * float(milliseconds.min()),
                                                      4 * float(milliseconds.max()), 4), marks)


def _stacks(data: Composition, x: Axis) -> Panel:
    shares = data.seconds / data.seconds.sum(axis=1, keepdims=True)
    begins = np.cumsum(shares, axis=1) - shares
    marks: list[Mark] = [Bars(data.places, share, part, colour, begin, across=False, thickness=0.74)
                         for part, colour, share, begin in zip(data.parts, _colours(data.parts), shares.T, begins.T,
                                                               strict=True)]
    marks += [Text("no steps between", index - 1, 0.5, align="center", valign="center", upright=True)
              for index in data.places[1:][np.diff(data.bins) > 1].tolist()]
    return Panel("Share of the step", x, Axis("", 0, 1, percent=True, most=5), marks, legend="right", tall=2.2)


def _colours(parts: list[str]) -> list[str]:
    palette = iter(PALETTE)
    return [GREY if part == WAITING[HOST] else FAINT if part == _OTHER else next(palette) for part in parts]
