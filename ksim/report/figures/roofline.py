"""The roofline: how close each kernel comes to the GPU's peaks of arithmetic and memory.

The map of kernel families: their distance from the roofline, and how much it differs from GPU to GPU.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isnan, log10, nan, sqrt
from typing import Any

import numpy as np
from attrs import evolve, frozen

from ksim.flow.events import EngineBuilt
from ksim.flow.kernels import BOUNDS
from ksim.report.charts import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    Axis,
    Dots,
    Line,
    Margins,
    Panel,
    Rule,
    Span,
    Text,
    plain,
)
from ksim.report.charts import Mark as Drawn
from ksim.report.figures import Picture
from ksim.report.wording import percent
from ksim.results.history import History
from ksim.results.kernels import KernelUsage, work_columns
from ksim.results.steps import Bools

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
class Mark:
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


def marks_of(rows: Iterator[Mapping[str, Any]] | Sequence[Mapping[str, Any]]) -> Iterator[Mark]:
    """The kernels with both FLOP and bytes, with their intensity and rate."""
    for row in rows:
        if row["flops"] and row["bytes"] and row["gpu_seconds"]:
            said = (f"{row['label']} ({row['family']}): {percent(row['run_share'])} of the run,"
                    f" {percent(row['flops_share'])} of peak FLOP/s, {percent(row['bandwidth_share'])} of peak bytes/s"
                    ) if "run_share" in row else ""
            yield Mark(row["label"], row["flops"] / row["bytes"], row["flops"] / row["gpu_seconds"], row["seconds"],
                       bound_of(row), said=said)


@frozen
class Step:
    """What a panel shows: its title, its kernels that fit on a roofline, and their share of its time.

    It may have `roofs` of its own, those of the GPUs that ran it.
    """

    title: str
    marks: Sequence[Mark]
    share: float = 1.0
    roofs: Sequence[Roof] = ()


def panel(step: Step, roofs: Sequence[Roof], every: Sequence[Mark], near: float = _NEAR, room: float = 100.0,
          least: float = 0.0) -> Panel:
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


def _roofs(roofs: Sequence[Roof], left: float, right: float) -> Iterator[Drawn]:
    for roof in roofs:
        x = np.array([left, roof.flops / roof.bandwidth, 1e3 * right])  # straight lines on logarithmic scales
        name = f"{roof.name}, " if roof.name else ""
        yield Line(x, np.minimum(roof.flops, roof.bandwidth * x), colour=INK, width=1.3,
                   hover=f"{name}{roof.flops / 1e12:,.0f} TFLOP/s, {roof.bandwidth / 1e12:.1f} TB/s")
        yield Text(f"{name}{roof.flops / 1e12:,.0f} TFLOP/s", right, roof.flops, align="right", shift=(0, 4))
    for bandwidth in sorted({roof.bandwidth for roof in roofs}):
        middle = (left * min(roof.flops for roof in roofs) / bandwidth) ** 0.5
        yield Text(f"{bandwidth / 1e12:.1f} TB/s", middle, bandwidth * middle, align="right", shift=(-7, 3))


def _dots(marks: Sequence[Mark], near: float, least: float) -> Iterator[Dots]:
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


def _names(marks: Sequence[Mark], near: float, least: float) -> dict[Mark, str]:
    """What stands beside each mark: those near each other share a text, which stands at the one with most time."""
    clusters: list[list[Mark]] = []
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


def _distance(one: Mark, other: Mark) -> float:
    """The distance of two marks, in decades."""
    return max(abs(log10(one.intensity / other.intensity)), abs(log10(one.rate / other.rate)))


def run_roofline(history: History, usage: KernelUsage, title: str = "Roofline") -> Picture:
    """Rooflines of a run, one for steps that only decode and one for steps with prompts; with pools, one for each.

    A mark for each kernel shows the FLOP/s that it achieved over its FLOP per byte.
    """
    note = ("a mark for every kernel: its area the share of GPU time, its colour what limits it; marks in one place"
            " share a label")
    steps = [Step(name, list(marks_of(_rows(work_columns(usage, which)))), roofs=_peaks(engines))
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
        for place, name in enumerate(history.pools):
            engines = [built for built in history.engines if built.pool == name]
            yield f"Steps of pool {name}", history.pool[history.steps.engine] == place, engines
    else:
        with_prompts = history.steps.prefills > 0
        yield from (("Decode steps", ~with_prompts, ()), ("Steps with prompt tokens", with_prompts, ()))


def step_roofline(title: str, roofs: Sequence[Roof], steps: Sequence[Step]) -> Picture:
    """Rooflines of *steps*, a panel for each: FLOP/s of each kernel over its FLOP per byte."""
    note = "a mark for every kernel: its area the share of the step's time, its colour what limits it"
    if any(not isnan(mark.low) for step in steps for mark in step.marks):
        note += ", its bar the 90 % interval"
    return Picture(title, _panels(steps, roofs, near=_SAME, room=8.0), note, 1.5 + 5.75 * len(steps), 6.2, len(steps))


def _panels(steps: Sequence[Step], roofs: Sequence[Roof], **more: float) -> list[Panel]:
    """A panel for each of *steps*; the last one names the bounds of all."""
    every = [mark for step in steps for mark in step.marks]
    made = [panel(step, roofs, every, **more) for step in steps]
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


def _zones(zones: Sequence[ZoneArea], x: Axis, y: Axis) -> Iterator[Drawn]:
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
        yield from (Rule(edge, GREY, across, width=0.9) for edge in sorted(ends - {inf}))


def _families(marks: Sequence[FamilyMark]) -> Iterator[Drawn]:
    marks = sorted(marks, key=lambda mark: -mark.share)
    for mark in marks:
        yield Line([mark.low, mark.high], [mark.high / mark.low] * 2, colour=GREY, width=0.9)
    yield Dots([mark.eta for mark in marks], [mark.high / mark.low for mark in marks], "", BLUE,
               [max(_SMALLEST_DOT, _LARGEST_DOT * sqrt(mark.share)) for mark in marks], opacity=0.8,
               texts=[mark.name for mark in marks])
