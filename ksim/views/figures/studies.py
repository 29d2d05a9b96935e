"""Figures of studies and of traces.

Those of studies show the share of requests within each target and goodput as the rate rises, the Pareto front between
objectives, a number of a sweep over a setting, the trials of a tuning, and routers side by side.  Those of traces show
when requests arrive and how long they are, and how often a prefix cache hits, by its size.  That of routing shows the
mean and the fullest rank of experts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve, frozen

from ksim.foundation.units import measured
from ksim.results.steps import Floats, per_second
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
    Dots,
    Mark,
    Panel,
    Polyline,
    RuleLine,
    Span,
    Text,
    plain,
    prefix,
    reach,
    wide_axis,
)
from ksim.views.figures import Picture
from ksim.views.wording import OBJECTIVES, number

#: The content of capacity.json, or a part of it.
Answer = Mapping[str, Any]
#: The most set-ups that are drawn; on a page, a click on the legend shows others.
_DRAWN = 4
_GOODPUT = "goodput"


def capacity_chart(title: str, answer: Answer, fewest: int) -> Picture:
    """Attainment of each target, and goodput below it, over the rate; *fewest* replications have an interval."""
    first, *others = [panel for _, panel in capacity_panels(answer, fewest)]
    panels = [first, *(evolve(panel, legend="") for panel in others)]
    return Picture(f"Capacity: {title}", panels, "Bands are 95 % intervals of the traffic, and a column that of the"
                   " highest rate, with the model's error", 8.6, 0.8 + 2.6 * len(panels), shared=True)


def capacity_panels(answer: Answer, fewest: int) -> Iterator[tuple[str, Panel]]:
    """A panel for each target and one for goodput, by these names; none where no rate was tried."""
    tried = [(one, points) for one in answer["set_ups"] if (points := tried_rates(one))]
    searched = any(one["highest_rate"] for one, _ in tried)
    for name in (*answer["targets"], _GOODPUT) if tried else ():
        marks: list[Mark] = []
        for index, (one, points) in enumerate(tried):
            waits = index >= _DRAWN or (searched and not one["highest_rate"])
            marks += _set_up(one, points, name, PALETTE[index % len(PALETTE)], fewest, waits)
        x = Axis("requests/s", 0, _reach(answer, tried))
        if answer["rate"]:
            marks.append(RuleLine(answer["rate"], INK, dash="dot", name=f"{answer['rate']:g} requests/s, as asked"))
        if name == _GOODPUT:
            marks.append(Polyline([0, x.high], [0, x.high], "every request", GREY, "dash", 1.0, hover=""))
            yield name, Panel("Goodput: requests/s within all targets, below the dashed line of every request", x,
                              Axis("goodput, requests/s", 0), marks, legend="upper left")
            continue
        if share := share_of(name):
            marks.append(RuleLine(share, RED, across=True, width=1.2))
        sure = [value for one in marks if isinstance(one, Polyline)
                for value, hollow in zip(one.y, one.hollow, strict=True) if not hollow]
        least = max(0.0, min(min(sure, default=0.0) - 0.05, 0.9))
        yield name, Panel(f"Requests within {name}", x,
                          Axis("share of requests", least, 1 + 0.04 * (1 - least), percent=True), marks,
                          legend="lower left")


def set_up_name(one: Answer) -> str:
    """A set-up with its replicas."""
    return f"{one['replicas']} x {one['name']}" if (one["replicas"] or 1) > 1 else str(one["name"])


def tried_rates(one: Answer) -> list[Answer]:
    """The rates that were tried, in order."""
    return sorted(one["points"] or ([one["point"]] if one["point"] else []), key=lambda point: point["rate"])


def share_of(target: str) -> float | None:
    """The share that a target such as ttft:p99:1s asks for; None for a mean."""
    statistic = target.split(":")[1] if target.count(":") == 2 else ""
    if statistic == "median":
        return 0.5
    try:
        return float(statistic.removeprefix("p")) / 100 if statistic.startswith("p") else None
    except ValueError:
        return None


def _set_up(one: Answer, points: Sequence[Answer], name: str, colour: str, fewest: int, waits: bool) -> Iterator[Mark]:
    """The curve of a set-up and the band of its rates that have intervals; the interval of its highest rate."""
    found = [(point, estimate) for point in points
             if (estimate := point["goodput"] if name == _GOODPUT else point["targets"].get(name, {}).get("attainment"))
             and estimate["value"] is not None]
    values = [estimate["value"] for _, estimate in found]
    sure = [point["replications"] >= fewest for point, _ in found]
    ends = [estimate["interval"] if known else None for known, (_, estimate) in zip(sure, found, strict=True)]
    low, high = ([math.nan if interval is None else value if interval[end] is None else interval[end]
                  for value, interval in zip(values, ends, strict=True)] for end in (0, 1))
    yield Polyline([point["rate"] for point, _ in found], values, set_up_name(one), colour, dots=5.0, low=low,
                   high=high, hollow=[not known for known in sure], waits=waits,
                   hover=("%{y:,.4~g}" if name == _GOODPUT else "%{y:.2%}") + " at %{x:,.4~g} requests/s")
    if (highest := one["highest_rate"]) and not waits:
        yield RuleLine(highest["rate"], colour, dash="", width=1.2)
        yield Span(highest["interval"][0] or 0.0, highest["interval"][1] or 2 * points[-1]["rate"], colour)


def _reach(answer: Answer, tried: Sequence[tuple[Answer, Sequence[Answer]]]) -> float:
    """Up to which rate figures show: past what is asked for and found, but not up to every rate that was tried."""
    rates = [point["rate"] for _, points in tried for point in points]
    answers = [one["highest_rate"] for one, _ in tried if one["highest_rate"]]
    found = [found["interval"][1] or found["rate"] for found in answers]
    return float(min(1.05 * max(rates), 1.6 * max([*found, answer["rate"] or 0.0]) or max(rates)))


#: Diameters in points, and the largest number of names; more would hide the marks.
_LARGE, _SMALL, _NAMED = 8.0, 5.6, 24


@frozen
class Scale:
    """An objective, and whether higher is better."""

    name: str
    maximise: bool = False

    @property
    def label(self) -> str:
        return f"{self.name} ({'more' if self.maximise else 'less'} is better)"


@frozen
class ParetoMark:
    """A point: its value on each scale, and its name if it is on the front."""

    values: tuple[float, ...]
    on_front: bool
    name: str = ""


def pareto_chart(title: str, note: str, scales: Sequence[Scale], marks: Sequence[ParetoMark]) -> Picture:
    """The first objective over each other one, in one panel each; a single objective over the number of the point.

    Between two objectives, the front is the edge of a shaded area, in which every point is dominated.
    """
    if len(scales) == 1:
        marks = [evolve(mark, values=(mark.values[0], float(index))) for index, mark in enumerate(marks, 1)]
    y = wide_axis(scales[0].label, [mark.values[0] for mark in marks])
    panels = []
    for index, scale in enumerate(scales[1:] or [None], 1):
        x = wide_axis(scale.label, [mark.values[index] for mark in marks]) if scale else Axis(
            "point", 0.5, max(len(marks), 1) + 0.5)
        drawn: list[Mark] = [*_points(marks, index)]
        if len(scales) == 2 and marks:
            drawn.append(_front(scales, marks, x, y))
        panels.append(Panel("", x, y, drawn, legend="best"))
    return Picture(title, panels, note, 8.0 if len(scales) == 1 else 1.2 + 6.8 * len(panels), 5.6, len(panels))


def _points(marks: Sequence[ParetoMark], index: int) -> Iterator[Dots]:
    """The marks, those of the front with their names; marks at the same position share one."""
    beaten = [mark.values for mark in marks if not mark.on_front]
    if beaten:
        yield Dots([values[index] for values in beaten], [values[0] for values in beaten], "beaten", GREY, _SMALL)
    shared: dict[tuple[float, float], list[str]] = {}
    leading = [mark for mark in marks if mark.on_front]
    for mark in leading[:_NAMED]:
        shared.setdefault((mark.values[index], mark.values[0]), []).append(mark.name)
    texts = ["; ".join(shared.pop((mark.values[index], mark.values[0]), [])) for mark in leading]
    if leading:
        yield Dots([mark.values[index] for mark in leading], [mark.values[0] for mark in leading], "on the front", BLUE,
                   _LARGE, texts=texts)


def _front(scales: Sequence[Scale], marks: Sequence[ParetoMark], x: Axis, y: Axis) -> Polyline:
    """The area that the front dominates, and its edge: between two points, it takes the worse value of both."""
    corners = sorted({mark.values for mark in marks if mark.on_front}, key=lambda values: values[1],
                     reverse=scales[1].maximise)
    worst_x, worst_y = (float((axis.low if scale.maximise else axis.high) or 0.0)
                        for axis, scale in ((x, scales[1]), (y, scales[0])))
    places = [*(values[1] for values in corners for _ in range(2)), worst_x]
    edge = [worst_y, *(values[0] for values in corners for _ in range(2))]
    return Polyline(places, edge, colour=BLUE, width=1.4, area=0.05, low=[worst_y] * len(edge), high=edge, hover="")


def plan_chart(title: str, answer: Answer) -> Picture:
    """What options of a plan cost, by the first objective, and each other one or their worst target over its limit."""
    panels = plan_panels(answer)
    note = f"{answer['candidates']:,} candidates; {len(answer['options']):,} carry {answer['rate']:g} requests/s by" \
           " estimates"
    return Picture(title, panels, note, 8.0 if len(panels) == 1 else 1.2 + 6.8 * len(panels), 5.6, len(panels))


def plan_panels(answer: Answer) -> list[Panel]:
    """The same; estimates are small, and the finalists that carry the load are shown as they were simulated."""
    first, *others = answer["minimize"]
    return [_plan_panel(answer, first, other) for other in others or [""]]


def _plan_panel(answer: Answer, first: str, other: str) -> Panel:
    """The options over the *first* objective and the *other*, or where there is none the worst target."""
    limits = {text: _limit(text) for text in answer["targets"]}
    stands = [one for one in answer["finalists"] if one["stands"]]

    def height(one: Answer, seconds: Mapping[str, float | None]) -> float:
        cost: float = one["costs"][other] if other else max((seconds[text] or 0.0) / limit for text, limit in
                                                            limits.items())
        return cost

    guesses = [(one["costs"][first], height(one, one["seconds"]), one["name"]) for one in answer["options"]
               if all(one["seconds"][text] for text in limits)]
    seen = [(one["costs"][first], height(one, {text: one["seconds"][text]["value"] for text in limits}), one["name"])
            for one in stands]
    marks: list[Mark] = []
    for name, colour, size, rows in (("estimated", GREY, _SMALL, guesses), ("simulated", BLUE, _LARGE, seen)):
        if rows:
            marks.append(Dots([cost for cost, *_ in rows], [share for _, share, _ in rows], name, colour, size,
                              texts=[row[2] if row == seen[0] else "" for row in rows] if rows is seen else
                              [""] * len(rows), hover=[row[2] for row in rows]))
    front = sorted(row[:2] for row in seen if row[2] in answer["front"])
    if other and len(front) > 1:
        marks.append(Polyline([cost for cost, _ in front], [cost for _, cost in front], "the front", BLUE, steps=True))
    x = wide_axis(OBJECTIVES[first], [cost for cost, *_ in (*guesses, *seen)])
    y = wide_axis(OBJECTIVES[other] if other else "worst target over its limit",
                  [share for _, share, _ in (*guesses, *seen)])
    return Panel("", x, y, marks, legend="best")


def _limit(target: str) -> float:
    """The seconds of a target such as ttft:p99:1s."""
    return measured(target.rpartition(":")[2], "s")


@frozen
class Curve:
    """Points of a line: (place on the x axis, value, half the width of its interval or not a number)."""

    name: str
    points: Sequence[tuple[float | str, float, float]]


def sweep_chart(title: str, x: str, y: str, by: str, curves: Sequence[Curve]) -> Picture:
    """The *curves*, one for each value of *by*, if that is a name; places that are texts stand in their order."""
    places = list(dict.fromkeys(index for curve in curves for index, *_ in curve.points))
    texts = {index: at for at, index in enumerate(places)} if any(isinstance(index, str) for index in places) else {}
    marks: list[Mark] = []
    for row, curve in enumerate(curves):
        colour, at = PALETTE[row % len(PALETTE)], [texts.get(index, index) for index, *_ in curve.points]
        values, widths = [value for _, value, _ in curve.points], [width for *_, width in curve.points]
        marks.append(Polyline(at, values, curve.name, colour, dots=5.0))
        if any(width > 0 for width in widths):
            marks.append(Dots(at, values, colour=colour, size=6.5, low=np.subtract(values, widths),
                              high=np.add(values, widths)))
    across = Axis(x, ticks={at: str(index) for index, at in texts.items()}) if texts else Axis(x)
    panel = Panel("", across, Axis(y), marks, legend="best" if by else "", legend_title=by)
    return Picture(title, [panel], f"{y} over {x}{f', by {by}' if by else ''}")


@frozen
class TrialMark:
    """A trial of a tuning: its number, its value, whether it counts, and its settings."""

    number: int
    value: float
    counts: bool
    said: str = ""


def search_chart(title: str, note: str, label: str, trials: Sequence[TrialMark], maximise: bool = False) -> Picture:
    """Each of *trials*; the line is the best of those that count."""
    marks: list[Mark] = []
    for counts, colour, name in ((False, GREY, "does not count"), (True, BLUE, "counts")):
        if own := [trial for trial in trials if trial.counts is counts]:
            marks.append(Dots([trial.number for trial in own], [trial.value for trial in own], name, colour, 5.0,
                              cross=not counts, below=True, texts=[""] * len(own),
                              hover=[f"trial {trial.number}: {plain(trial.value)}; {trial.said}" for trial in own]))
    if found := best_so_far(trials, maximise):
        numbers, values = [trial.number for trial in found], [trial.value for trial in found]
        last = max(trial.number for trial in trials)
        marks.append(Polyline([*numbers, last], [*values, values[-1]], "best so far", GREEN, steps=True))
    return Picture(title, [Panel("", Axis("trial"), Axis(label), marks, legend="best" if trials else "")], note)


def best_so_far(trials: Sequence[TrialMark], maximise: bool) -> list[TrialMark]:
    """Those of *trials* that count and are better than all before."""
    found: list[TrialMark] = []
    for trial in trials:
        if trial.counts and (not found or (trial.value > found[-1].value if maximise else
                                           trial.value < found[-1].value)):
            found.append(trial)
    return found


@frozen
class Dot:
    """A number of a router with signals of some `age`, and the ends of its interval, or not numbers.

    It is drawn so far below the router's line as its `lane` says, in lines.
    """

    router: str
    age: str
    value: float
    low: float = math.nan
    high: float = math.nan
    lane: float = 0.0


#: Values that differ by more than this factor are shown on a logarithmic scale.
_ROUTERS_WIDE = 30.0


def routers_chart(title: str, panels: Mapping[str, Sequence[Dot]]) -> Picture:
    """The *panels* by their titles; the first router is at the top of each."""
    dots = [dot for panel in panels.values() for dot in panel]
    routers, ages = list(dict.fromkeys(dot.router for dot in dots)), list(dict.fromkeys(dot.age for dot in dots))
    columns = min(3, max(1, len(panels)))
    rows = -(-len(panels) // columns)
    lanes = len({dot.lane for dot in dots})
    made = [routers_panel(name, panel, routers, ages, named=index % columns == 0)
            for index, (name, panel) in enumerate(panels.items())]
    return Picture(title, made, _note(panels, ages), 11.0,
                   1.5 + rows * (0.8 + (0.2 + 0.04 * lanes) * max(3, len(routers))), columns,
                   legend="below" if len(ages) > 1 else "", legend_title="age of signals")


def _note(panels: Mapping[str, Sequence[Dot]], ages: Sequence[str]) -> str:
    """What the colours are, and what a regret below 0 is where there is one."""
    said = [f"Colours are ages of signals: {', '.join(ages)}"] if len(ages) > 1 else []
    if any(dot.value < 0 for name, panel in panels.items() if "regret" in name for dot in panel):
        said.append("a regret below 0: first tokens came sooner than with omniscient, which minimises last tokens")
    return "; ".join(said)


def routers_panel(name: str, panel: Sequence[Dot], routers: Sequence[str], ages: Sequence[str],
                  named: bool = True) -> Panel:
    """A number of all *routers*, a dot for each of *ages*; every second line is shaded."""
    marks: list[Mark] = [Span(index - 0.5, index + 0.5, GREY, across=True) for index in range(1, len(routers), 2)]
    for age in ages:
        own = [dot for dot in panel if dot.age == age]
        marks.append(Dots([dot.value for dot in own], [routers.index(dot.router) + dot.lane for dot in own], age,
                          PALETTE[ages.index(age) % len(PALETTE)], 5.0, below=True, texts=[""] * len(own), across=True,
                          low=[dot.low for dot in own], high=[dot.high for dot in own],
                          hover=[f"{dot.router}: {plain(float(f'{dot.value:.4g}'))}" for dot in own]))
    return Panel("", _spread(name, sorted(dot.value for dot in panel)), Axis.names(routers, named), marks)


def _spread(title: str, values: Sequence[float]) -> Axis:
    """A linear axis; a logarithmic one, linear around 0, for *values*, in order, that spread widely."""
    positive = [value for value in values if value > 0]
    usual = positive[len(positive) // 2] if positive else 0.0
    if not usual or values[-1] <= _ROUTERS_WIDE * usual:
        return Axis(title, most=5)
    first, last = (math.floor(math.log10(value)) for value in (max(positive[0], -values[0]), values[-1]))
    powers = [10.0 ** power for power in range(first, last + 1, max(1, (last - first) // 3))]
    ticks = [*([0.0] if values[0] <= 0 else []), *powers]
    return Axis(title, scale="log" if values[0] > 0 else "symlog", ticks={tick: prefix(tick) for tick in ticks})


def speculation_chart(title: str, note: str, said: str, batches: Sequence[int], without: Sequence[float],
                      speculative: Sequence[float], pays: int) -> Picture:
    """TPOT for each of *batches*; a line where speculation stops to pay, if it does among them, as is *said* above."""
    marks: list[Mark] = [Polyline(batches, [1e3 * seconds for seconds in each], name, colour, dots=4.0)
                         for name, colour, each in (("plain", GREY, without), ("with speculation", BLUE, speculative))]
    if 0 < pays < batches[-1]:
        marks.append(RuleLine(pays, ORANGE, width=1.8, name=f"pays up to {pays}"))
    x = Axis("sequences that decode", scale="log2", ticks={batch: f"{batch:,}" for batch in batches})
    panel = Panel(said, x, Axis("time per output token, ms", 0, most=5), marks, legend="upper left")
    return Picture(title, [panel], note, 7.2, 4.4)


_BINS = 30


def trace_chart(arrivals: Sequence[float], prompts: Sequence[int], outputs: Sequence[int], title: str) -> Picture:
    """Arrival rate over time, and distributions of prompt lengths, output lengths and times between arrivals.

    *arrivals* are in seconds, in any order; *prompts* and *outputs* in tokens.
    """
    times = np.sort(np.asarray(arrivals, dtype=np.float64))
    tokens = int(np.sum(prompts)), int(np.sum(outputs))
    panels = [_rate(times), _lengths("Prompt length", np.asarray(prompts, np.float64), BLUE),
              _lengths("Output length", np.asarray(outputs, np.float64), GREEN), _gaps(np.diff(times))]
    note = f"{len(times):,} requests, {tokens[0]:,} prompt tokens, {tokens[1]:,} output tokens"
    return Picture(title, panels, note, 10, 7, 3)


def _rate(times: Floats) -> Panel:
    """Requests per second; a note counts the few that arrive long after all others."""
    title, axis = "Requests per second", "seconds from the start of the trace"
    span = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    if span <= 0:
        return Panel(title, Axis(axis), Axis(), [Text("all at once", 0.5, 0.5, of="panel", align="center")],
                     wide=True)
    end = float(times[0]) + reach(times - times[0], room=1.1)
    rates = per_second(times, max(10, min(150, len(times) // 4)), end, times[0])
    edges = np.linspace(times[0], end, len(rates) + 1)
    shown = times[times <= end]
    mean = (len(shown) - 1) / (float(shown[-1] - shown[0]) or span)
    late = len(times) - len(shown)
    said = f"mean {number(mean)}" + (f"; {late:,} later, the last at {number(float(times[-1]))} s" if late else "")
    return Panel(title, Axis(axis, edges[0], edges[-1]), Axis("", 0),
                 [Polyline(edges, np.append(rates, rates[-1]), "", ORANGE, width=1.3, steps=True, area=0.25),
                  RuleLine(mean, across=True)], said, wide=True)


def _lengths(title: str, lengths: Floats, colour: str) -> Panel:
    """A histogram over a logarithmic axis."""
    if not len(lengths):
        return Panel(title, Axis("tokens"), Axis(), [])
    low, high = max(1.0, float(lengths.min())), float(lengths.max())
    edges = np.geomspace(low * 0.9, max(high, low) * 1.1, _BINS + 1)
    shares = np.histogram(lengths, edges)[0] / len(lengths)
    median, tail = np.percentile(lengths, (50, 99)).tolist()
    marks: list[Mark] = [Polyline(edges, np.append(shares, shares[-1]), "", colour, width=0.8, steps=True, area=0.45),
                         RuleLine(median), RuleLine(tail),
                         Text(f"p50 {median:,.0f}\np99 {tail:,.0f}", 0.98, 0.97, INK, "panel", "right", "top",
                              boxed=True)]
    return Panel(title, Axis.log("tokens", float(edges[0]), float(edges[-1]), 6),
                 Axis("share of requests", 0, percent=True, most=5), marks)


def _gaps(gaps: Floats) -> Panel:
    """The time between arrivals, compared with a Poisson process of the same rate."""
    x, y = Axis("times the mean", 0, 5, most=5), Axis("share of arrivals", 0, 1.02, percent=True, most=5)
    if not len(gaps) or gaps.mean() <= 0:
        return Panel("Between two arrivals", x, y, [])
    shares, points = np.linspace(0, 1, 401), np.linspace(0, 5, 200)
    marks = [Polyline(points, 1 - np.exp(-points), "Poisson", FAINT, "dash", 1.2),
             Polyline(np.quantile(gaps / gaps.mean(), shares), shares, "trace", PURPLE)]
    return Panel("Between two arrivals", x, y, marks, legend="lower right",
                 legend_title=f"variation {number(float(gaps.std() / gaps.mean()))}")


def cache_chart(sizes: Sequence[float], rates: Mapping[str, Sequence[float]], ends: Mapping[str, float], title: str,
                unit: str) -> Picture:
    """A line of hit *rates* over rising *sizes*, in *unit*, for each policy; tiers are marked at their *ends*."""
    marks: list[Mark] = [Polyline(sizes, shares, policy, colour)
                         for colour, (policy, shares) in zip(PALETTE, rates.items(), strict=False)]
    for name, end in ends.items():
        marks += [RuleLine(end), Text(f"{name} ", end, 0.99, of="over", align="right", valign="top", upright=True)]
    x = Axis.log(f"{unit} (logarithmic)", min(sizes), max(sizes[-1], 1.01 * sizes[0]), 9)
    panel = Panel("Hits, share of prompt tokens", x, Axis("", 0, percent=True, most=5), marks, legend="upper left")
    return Picture(f"Prefix cache: {title}", [panel], "one cache that sees all requests in order", 8.6, 4.8)


def expert_load_chart(title: str, layers: Sequence[int], fullest: Floats, balanced: Floats | None,
                      batches: Sequence[int], by_batch: Floats) -> Picture:
    """Rows of the fullest rank over those of the mean one: by layer, and on average in *batches* of so many tokens.

    EnergyLens (arXiv 2605.14249), figure 2, shows mean and bottleneck so.  *balanced* is where EPLB places experts.
    """
    mean = RuleLine(1.0, GREY, across=True, name="mean rank")
    by_layer: list[Mark] = [mean, Polyline(layers, fullest, "fullest, experts in their order", ORANGE, dots=3.0)]
    if balanced is not None:
        by_layer.append(Polyline(layers, balanced, "fullest, placed by EPLB", GREEN, dots=3.0))
    expected = Polyline(batches, by_batch, "fullest, experts in their order", ORANGE, dots=3.0)
    sizes = Axis("tokens in the batch", scale="log2", ticks={float(tokens): f"{tokens:,}" for tokens in batches[::3]})
    panels = [Panel("All tokens, by layer", Axis("layer"), Axis("rows over the mean", 0.0), by_layer, legend="best"),
              Panel("In a batch, mean of layers", sizes, Axis("rows over the mean", 0.0), [mean, expected])]
    return Picture(title, panels, "A layer takes as long as its fullest rank", 9.6, 4.2, 2)
