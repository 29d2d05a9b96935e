"""The load of a trace: when its requests arrive, and how long they are.

How often a prefix cache hits, by its size.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ksim.results.steps import Floats
from ksim.views.charts import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    Axis,
    Line,
    Mark,
    Panel,
    Rule,
    Text,
    reach,
)
from ksim.views.figures import Picture
from ksim.views.wording import number

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
    edges = np.linspace(times[0], end, max(10, min(150, len(times) // 4)) + 1)
    rates = np.histogram(times, edges)[0] / np.diff(edges)
    shown = times[times <= end]
    mean = (len(shown) - 1) / (float(shown[-1] - shown[0]) or span)
    late = len(times) - len(shown)
    said = f"mean {number(mean)}" + (f"; {late:,} later, the last at {number(float(times[-1]))} s" if late else "")
    return Panel(title, Axis(axis, edges[0], edges[-1]), Axis("", 0),
                 [Line(edges, np.append(rates, rates[-1]), "", ORANGE, width=1.3, steps=True, area=0.25),
                  Rule(mean, across=True)], said, wide=True)


def _lengths(title: str, lengths: Floats, colour: str) -> Panel:
    """A histogram over a logarithmic axis."""
    if not len(lengths):
        return Panel(title, Axis("tokens"), Axis(), [])
    low, high = max(1.0, float(lengths.min())), float(lengths.max())
    edges = np.geomspace(low * 0.9, max(high, low) * 1.1, _BINS + 1)
    shares = np.histogram(lengths, edges)[0] / len(lengths)
    median, tail = np.percentile(lengths, (50, 99)).tolist()
    marks: list[Mark] = [Line(edges, np.append(shares, shares[-1]), "", colour, width=0.8, steps=True, area=0.45),
                         Rule(median), Rule(tail),
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
    marks = [Line(points, 1 - np.exp(-points), "Poisson", FAINT, "dash", 1.2),
             Line(np.quantile(gaps / gaps.mean(), shares), shares, "trace", PURPLE)]
    return Panel("Between two arrivals", x, y, marks, legend="lower right",
                 legend_title=f"variation {number(float(gaps.std() / gaps.mean()))}")


def cache_chart(sizes: Sequence[float], rates: Mapping[str, Sequence[float]], ends: Mapping[str, float], title: str,
                unit: str) -> Picture:
    """A line of hit *rates* over rising *sizes*, in *unit*, for each policy; tiers are marked at their *ends*."""
    marks: list[Mark] = [Line(sizes, shares, policy, colour)
                         for colour, (policy, shares) in zip(PALETTE, rates.items(), strict=False)]
    for name, end in ends.items():
        marks += [Rule(end), Text(f"{name} ", end, 0.99, of="over", align="right", valign="top", upright=True)]
    x = Axis.log(f"{unit} (logarithmic)", min(sizes), max(sizes[-1], 1.01 * sizes[0]), 9)
    panel = Panel("Hits, share of prompt tokens", x, Axis("", 0, percent=True, most=5), marks, legend="upper left")
    return Picture(f"Prefix cache: {title}", [panel], "one cache that sees all requests in order", 8.6, 4.8)
