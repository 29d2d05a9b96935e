"""Figures of a run: latencies, the run over time, its busiest links, and where requests' time went.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import frozen

from ksim.flow.events import RanksMet, Scaled
from ksim.results import series
from ksim.results.history import History, is_scaled
from ksim.results.kernels import KernelUsage, families
from ksim.results.numbers import LATENCIES, LatencyTargets, Summary
from ksim.results.steps import Bools, Floats, per_second, sums
from ksim.views.charts import (
    BLUE,
    FAINT,
    GOLD,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    PINK,
    PURPLE,
    RED,
    TEAL,
    Axis,
    Bars,
    Dots,
    Margins,
    Mark,
    Panel,
    Polyline,
    RuleLine,
    Text,
    reach,
)
from ksim.views.figures import Picture
from ksim.views.figures.kernels import SECONDS, composition_chart, energy_chart, run_roofline, shown_span
from ksim.views.wording import UP, measure, number, percent


def run_charts(history: History, usage: KernelUsage, kernels: pa.Table, limits: LatencyTargets, summary: Summary,
               subject: str) -> Iterator[tuple[str, Picture]]:
    """Every figure that a run has data for, with its name.

    *kernels* is its table, *summary* its numbers; *subject* is part of each title.
    """
    if history.requests.completed.any():
        yield "latency", latency_chart(history, limits, summary, f"Latency: {subject}")
    if len(history.steps):
        yield "timeline", over_time(Moments.of(history), f"Over time: {subject}")
    if is_scaled(history.engines):
        from ksim.results.scaling import replica_table, scaling_rows
        from ksim.views.figures.scaling import ScaledMoments, scaling_chart

        tables = replica_table(history.engines, history.duration), scaling_rows(history.log.columns(Scaled))
        moments = ScaledMoments.of(history, limits, summary, tables)
        yield "scaling", scaling_chart(moments, f"Autoscaling: {subject}")
    if history.busy_gpu_seconds > 0:
        for name, pool, which in _compositions(history):
            yield name, composition_chart(history, usage, f"Steps{pool}: {subject}", which)
        yield "roofline", run_roofline(history, usage, f"Roofline: {subject}")
        yield "energy", energy_chart(history, families(kernels), f"Energy: {subject}")
    end, note, links = links_of(history)
    if links:
        yield "links", links_chart(f"Links: {subject}", links, len(history.links), end, note)
    if history.log.has(RanksMet):
        from ksim.views.figures.ranks import rank_charts

        yield from rank_charts(history, subject)


def _compositions(history: History) -> Iterator[tuple[str, str, Bools | None]]:
    """The name, the pool and the steps of each figure of steps: one figure for each pool that had any."""
    if not history.pools:
        yield "composition", "", None
    for index, name in enumerate(history.pools):
        which = history.pool[history.steps.engine] == index
        if which.any():
            yield f"composition-{name}", f" of pool {name}", which


TITLES = {name: title if name == "queue" else f"{title} ({name.upper()})" for name, title in LATENCIES.items()}
#: The percentiles that are marked.
_MARKED = (50, 90, 99)
#: The number of values from which a curve is drawn if there are many more.
_VALUES = 100_000
#: Above this ratio between the slowest and the fastest, a linear axis would hide one of them.
_WIDE = 25.0
#: Share of the width that the label of the 99th percentile needs.
_LABEL = 0.25


def latency_chart(history: History, limits: LatencyTargets, summary: Mapping[str, Any], title: str) -> Picture:
    """Cumulative distributions of TTFT, TPOT, ITL and end-to-end latency of the completed requests."""
    requests, done = history.requests, history.requests.completed
    count, tokens = int(done.sum()), int(requests.output[done].sum())
    values = {"ttft": requests.ttft[done], "tpot": requests.tpot[done & (requests.output > 1)],
              "itl": requests.gaps_of(done), "e2el": requests.e2e[done]}
    targets = {"ttft": limits.ttft, "tpot": limits.tpot, "e2el": limits.e2el}
    panels = [distribution(name, 1e3 * each, None if (limit := targets.get(name)) is None else 1e3 * limit, summary)
              for name, each in values.items()]
    note = f"{count:,} completed request{'s' if count > 1 else ''}, {tokens:,} output tokens"
    if summary.get("median_ttft_low_ms") is not None:
        note += "; bars are 90 % intervals"
    return Picture(title, panels, note, 10, 7, 2, Margins(left=0.85, columns=0.95, rows=0.95))


def distribution(name: str, values: Floats, limit: float | None, summary: Mapping[str, Any]) -> Panel:
    """The share of *values* of a latency, in ms, within each; its target is *limit*, its percentiles are in *summary*.
    """
    things = "gaps" if name == "itl" else "requests"
    y = Axis(f"share of {things}", 0, 1.02, percent=True, most=5)
    if not len(values):
        return Panel(TITLES[name], Axis("milliseconds"), y, [])
    few = values[:: -(-len(values) // _VALUES)]
    x, shares = step_of(few)
    marked = {share: summary[f"p{share}_{name}_ms"] for share in _MARKED}
    largest = float(values.max())
    axis = _axis(x, reach(np.append(few, largest)), marked[99], limit)
    right = float(axis.high or 0.0)
    inside = {share: value for share, value in marked.items() if value <= right}
    curve = Polyline(np.append(x, max(right, x[-1])), np.append(shares, 1.0), things, BLUE, area=0.10,
                     steps=len(x) <= 60, hover="%{y:.1%} within %{x:,.4~g} ms")
    dots = Dots([*inside.values()], [share / 100 for share in inside], "percentiles", BLUE, 5.0,
                texts=[f"p{share}  {number(value)}" for share, value in inside.items()], below=True,
                hover=[f"p{share}: {number(value)} ms" for share, value in inside.items()])
    notes: list[tuple[str, str]] = []
    if limit is not None:
        notes.append((f"target {number(limit)} ms: met by {percent(float((values <= limit).mean()))}", RED))
    if outside := int((values > right).sum()):
        notes.append((f"{outside:,} beyond the axis, up to {number(largest, UP)} ms", FAINT))
    notes += [(f"p{share}  {number(value)}, beyond the axis", INK) for share, value in marked.items() if value > right]
    target = [RuleLine(limit, RED, width=1.2)] if limit is not None else []
    return Panel(TITLES[name], axis, y, [*_intervals(name, summary), curve, dots, *target, *_noted(notes)])


def step_of(values: Floats) -> tuple[Floats, Floats]:
    """The cumulative distribution of *values*: at most 400 points, which no screen tells from all of them."""
    ordered = np.sort(values)
    if len(ordered) <= 400:
        return ordered, np.arange(1, len(ordered) + 1) / len(ordered)
    # More points where few values are, in the tails.
    shares = np.unique(np.concatenate([np.linspace(0, 1, 301), 1 - np.geomspace(0.1, 1 / len(ordered), 99)]))
    return np.quantile(ordered, shares), shares


def _axis(x: Floats, high: float, tail: float, limit: float | None) -> Axis:
    """An axis from the fastest to the slowest, with room for the label of the 99th percentile and for a target nearby.
    """
    low, shown = float(x[min(len(x) - 1, len(x) // 100)]), min(tail, high)
    if limit is not None and limit <= 2 * high:
        high = max(high, 1.05 * limit)
    if low > 0 and high / low > _WIDE:
        left = 0.8 * float(x[0]) or 0.5 * low
        return Axis.log("milliseconds", left, max(1.1 * high, shown * (shown / left) ** (_LABEL / (1 - _LABEL))), 7)
    return Axis("milliseconds", 0, max(1.04 * high, shown / (1 - _LABEL)) or 1.0)


def _intervals(name: str, summary: Mapping[str, Any]) -> Iterator[Mark]:
    """The intervals of the median and the p99, at their height."""
    for statistic, share in (("median", 0.5), ("p99", 0.99)):
        low, high = (summary.get(f"{statistic}_{name}_{side}_ms") for side in ("low", "high"))
        if low is not None and high is not None:
            yield Polyline([low, high], [share, share], colour=PURPLE, width=3.0, hover="")


def _noted(notes: list[tuple[str, str]]) -> Iterator[Text]:
    """The target, and what is beyond the axis; at the lower right, under the curve."""
    for index, (text, colour) in enumerate(notes):
        yield Text(text, 0.98, 0.03 + 0.075 * index, colour, "panel", "right", boxed=True)


#: Points of a curve; bins for requests, of which there are far fewer than tokens; links that are shown.
_BINS, _REQUEST_BINS, _LINKS = 240, 60, 8
#: Curves by name.
Curves = Mapping[str, Floats]


@frozen(eq=False)
class Moments:
    """Quantities of a run as means between equal times from its start to `end`, in seconds.

    `requests` are requests at a time, `rates` those offered and served per second, which may have fewer and longer
    bins, and `tokens` output tokens per second.  `kv` is the share of the KV blocks in use, and `watts` the power of a
    GPU: of each pool by its name, or of all engines by "".  `idle` is the power of a GPU that does nothing.
    """

    end: float
    requests: Curves
    rates: Curves
    tokens: Floats
    kv: Curves
    watts: Curves
    note: str = ""
    cache: str = ""
    idle: float | None = None

    @classmethod
    def of(cls, history: History) -> "Moments":
        """Those of a run, up to the time when nearly all requests have ended."""
        end, note = shown_span(history)
        edges = np.linspace(0, end, _BINS + 1)
        requests, steps = history.requests, history.steps
        rates = {"offered": requests.arrival, "served": requests.last_token[requests.completed]}
        load = {"running": series.running(history), "waiting": series.waiting(history)}
        if len(history.splits):
            load["between engines"] = series.moving(history)
        tokens = np.bincount(requests.token_steps, minlength=len(steps))
        inside = (steps.time > 0) & (steps.time < end)
        counts = sums((steps.time[inside] / edges[1]).astype(np.int64), tokens[inside], len(edges))[:_BINS]
        who = "" if history.pools else "fullest engine: " * (len(history.engines) > 1) + "up to"
        usage = float(steps.kv_usage.max(initial=0.0))
        pools = {name: np.flatnonzero(history.pool == index).tolist() for index, name in enumerate(history.pools)} or {
            "": list(range(len(history.engines)))}
        gpus = {name: sum(history.engines[own].ranks * history.engines[own].stages for own in places)
                for name, places in pools.items()}
        return cls(
            end=end, requests={name: each.means(edges) for name, each in load.items()},
            rates={name: per_second(times, _REQUEST_BINS, end) for name, times in rates.items()},
            tokens=counts / edges[1],
            kv={name: series.kv_usage(history, places).means(edges) for name, places in pools.items()},
            watts={name: series.power(history, places).means(edges) / gpus[name] for name, places in pools.items()},
            note=note, cache=f"{who} {percent(usage, 1, UP)}" if who else "",
            idle=None if history.pools else history.static_watts / history.gpus)


def over_time(moments: Moments, title: str = "The run over time") -> Picture:
    """Five panels over the run.

    They show running and waiting requests, offered and completed requests per second, output tokens per second, KV
    cache usage, and watts per GPU.
    """
    watts = next(iter(moments.watts.values()))
    idle = [] if moments.idle is None else [RuleLine(moments.idle, FAINT, across=True)]
    mean = "" if moments.idle is None else f"mean {number(float(watts.mean()))} W, idle {number(moments.idle)} W"
    panels = [
        _panel("Requests", moments, moments.requests, tall=1.4),
        _rates(moments),
        _panel("Output tokens per second", moments, {"": moments.tokens}, GREEN),
        _panel("KV cache in use", moments, moments.kv, PURPLE, percent=True, beside=moments.cache),
        _panel("Watts per GPU", moments, moments.watts, ORANGE, beside=mean, more=idle),
    ]
    note = f"every point the mean over {number(moments.end / len(moments.tokens))} s{moments.note}"
    return Picture(title, panels, note, 10, 9.2, margins=Margins(rows=0.5), shared=True)


def _panel(title: str, moments: Moments, curves: Curves, colour: str = BLUE, percent: bool = False, tall: float = 1.0,
           beside: str = "", more: Sequence[Mark] = ()) -> Panel:
    """A panel of *curves*; one alone has this *colour*."""
    return Panel(title, _seconds(moments.end), _upwards(curves.values(), percent),
                 [*(_curve(moments.end, *each) for each in _coloured(curves, colour)), *more], beside,
                 legend="above" if len(curves) > 1 else "", tall=tall)


def _seconds(end: float) -> Axis:
    return Axis(SECONDS, 0, end)


def _upwards(curves: Iterable[Floats], percent: bool = False) -> Axis:
    """An axis from 0 up to what *curves* reach; one of shares goes to 100 % where any is above a half."""
    most = max((float(values.max(initial=0.0)) for values in curves), default=0.0)
    return Axis("", 0, 1.02 if percent and most > 0.5 else 1.06 * most or 1.0, percent=percent, most=4)


def _coloured(curves: Curves, colour: str) -> Iterator[tuple[str, Floats, str]]:
    for (name, values), own in zip(curves.items(), cycle(PALETTE), strict=False):
        yield name, values, own if len(curves) > 1 else colour


def _curve(end: float, name: str, values: Floats, colour: str) -> Polyline:
    """The means between equal times as a curve over a pale area."""
    edges = np.linspace(0, end, len(values) + 1)
    return Polyline((edges[:-1] + edges[1:]) / 2, values, name, colour, width=1.3, area=0.15,
                    hover="%{y:,.4~g} at %{x:,.4~g} s")


def _rates(moments: Moments) -> Panel:
    """Arrivals and completions per second; a burst of arrivals may leave the axis."""
    marks: list[Mark] = []
    for (name, values), colour in zip(moments.rates.items(), (ORANGE, GREEN), strict=False):
        marks.append(Polyline(np.linspace(0, moments.end, len(values) + 1), np.append(values, values[-1]), name, colour,
                              width=1.3, steps=True, hover="%{y:,.4~g} at %{x:,.4~g} s"))
    offered = moments.rates["offered"]
    most, top = float(offered.max(initial=0.0)), reach(np.concatenate([*moments.rates.values()]))
    if most > top:
        at = int(offered.argmax()) * moments.end / len(offered)
        marks.append(Text(f"up to {number(most, UP)}", at, 1.0, ORANGE, "over", valign="top", shift=(12, -3)))
    return Panel("Requests per second", _seconds(moments.end), Axis("", 0, 1.08 * top or 1.0, most=4), marks,
                 legend="above")


@frozen(eq=False)
class LinkCurve:
    """A link: its capacity in bytes/s, and the share of it in use over the run: mean, peak, and means of equal times.
    """

    name: str
    capacity: float
    mean: float
    peak: float
    use: Floats


def links_of(history: History) -> tuple[float, str, list[LinkCurve]]:
    """The end of the axis and a note on it, and the busiest links; none in a run whose links nobody used."""
    end, note = shown_span(history)
    edges = np.linspace(0, end, _BINS + 1)
    return end, note, [LinkCurve(each.name, each.capacity, each.mean, each.use.peak, each.use.means(edges))
                       for each in series.busiest(history, _LINKS)]


def links_chart(title: str, links: Sequence[LinkCurve], count: int, end: float, note: str = "") -> Picture:
    """A panel for each of the busiest *links* of *count*: the share of its capacity in use over the run."""
    panels = [Panel(link.name, _seconds(end), _upwards([link.use], percent=True),
                    [_curve(end, "", link.use, ORANGE)],
                    f"of {measure(link.capacity, 'B/s')}: mean {percent(link.mean)}, at most"
                    f" {percent(link.peak, 1, UP)}") for link in links]
    said = (f"the busiest of {count:,} links, each in its own direction; every point the mean over"
            f" {number(end / len(links[0].use))} s{note}")
    return Picture(title, panels, said, 10, 1.6 + 1.25 * len(links), margins=Margins(rows=0.5), shared=True)


#: Colours of the groups of phases.
COLOURS = {
    "client's back-off": "#4a3f55", "held at the gateway": "#a38cb5",
    "client and intake": GREY, "queue": ORANGE, "queue: KV load": "#2f7f86", "queue: rest": ORANGE,
    "own prefill": BLUE, "others' prefill": "#8db4e2",
    "others' decodes": "#9ecfb8", "hop": "#6b7480", "wait for room": RED, "KV transfer": TEAL, "KV contention": PINK,
    "next step": "#c9a8a1", "decode": GREEN, "preemption": "#8c2f39", "host": GOLD, "adapter loads": "#7a5195",
    "communication": PURPLE, "delivery": "#b9c0c8",
}


def breakdown_chart(title: str, note: str, panels: Mapping[str, Mapping[str, Floats]], shown: Sequence[str]) -> Picture:
    """One panel for each metric, with an axis of its own: bars by name, with the seconds of each group that is *shown*.
    """
    bars = sum(map(len, panels.values()))
    return Picture(title, [_stack(name, each, shown) for name, each in panels.items()], note, 10,
                   1.6 + 0.75 * len(panels) + 0.42 * bars, legend="right")


def _stack(title: str, bars: Mapping[str, Floats], shown: Sequence[str]) -> Panel:
    seconds = 1e3 * np.array(list(bars.values())).reshape(len(bars), len(shown))
    begins, totals = np.cumsum(seconds, axis=1) - seconds, seconds.sum(axis=1)
    marks: list[Mark] = [Bars(np.arange(len(bars)), seconds[:, index], group, COLOURS.get(group, GREY),
                              begins[:, index], hover="%{customdata:,.4~g} ms of %{fullData.name}")
                         for index, group in enumerate(shown)]
    marks.append(Bars(np.arange(len(bars)), np.zeros(len(bars)), begins=totals, texts=[*map(number, totals.tolist())],
                      hover=""))
    return Panel(title, _milliseconds(1.12 * float(totals.max(initial=0.0))), Axis.names([*bars]), marks,
                 tall=0.6 + len(bars))


def changes_chart(title: str, note: str, rows: Sequence[Mapping[str, tuple[Floats, Floats]]],
                  shown: Sequence[str]) -> Picture:
    """A row of panels for each metric: from one run's total to the other's, group by group."""
    widest = max(map(len, rows))
    panels = [_waterfall(name, 1e3 * before, 1e3 * after, shown, named=not index)
              for row in rows for index, (name, (before, after)) in enumerate(row.items())]
    return Picture(title, panels, note, 3.7 * widest + 1.4, 3.2 * len(rows) + 0.8, widest)


def _waterfall(title: str, before: Floats, after: Floats, shown: Sequence[str], named: bool) -> Panel:
    """Steps from the sum of *before* to that of *after*; red where time is added, green where it is saved."""
    changes, first, last = after - before, float(before.sum()), float(after.sum())
    reached = first + np.cumsum(changes)
    lengths, begins = np.concatenate([[first], changes, [last]]), np.concatenate([[0.0], reached - changes, [0.0]])
    colours = [GREY, *(RED if change > 0 else GREEN for change in changes.tolist()), GREY]
    texts = [number(first), *map(_signed, changes.tolist()), number(last)]
    bars = Bars(np.arange(len(lengths)), lengths, "", colours, begins, texts)
    most = float(np.maximum(begins, begins + lengths).max())
    return Panel(title, _milliseconds(1.25 * most, 5), Axis.names(["first run", *shown, "second run"], named), [bars])


def _milliseconds(most: float, ticks: int = 8) -> Axis:
    return Axis("milliseconds", 0, most or 1.0, most=ticks)


def _signed(change: float) -> str:
    return "" if abs(change) < 5e-4 else f"{'+' if change > 0 else '-'}{number(abs(change))}"
