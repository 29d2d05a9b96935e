"""Where requests' time went: stacked bars of phases, and the change between two runs as waterfalls."""

from collections.abc import Mapping, Sequence

import numpy as np

from ksim.report.charts import (
    BLUE,
    GOLD,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    PURPLE,
    RED,
    TEAL,
    Axis,
    Bars,
    Mark,
    Panel,
)
from ksim.report.figures import Picture
from ksim.report.wording import number
from ksim.results.attribution import groups, members
from ksim.results.steps import Floats

#: Colours of the groups of phases.
COLOURS = {
    "client's back-off": "#4a3f55", "held at the gateway": "#a38cb5",
    "client and intake": GREY, "queue": ORANGE, "queue: KV load": "#2f7f86", "queue: rest": ORANGE,
    "own prefill": BLUE, "others' prefill": "#8db4e2",
    "others' decodes": "#9ecfb8", "hop": "#6b7480", "wait for room": RED, "KV transfer": TEAL, "KV contention": PINK,
    "next step": "#c9a8a1", "decode": GREEN, "preemption": "#8c2f39", "host": GOLD, "adapter loads": "#7a5195",
    "communication": PURPLE, "delivery": "#b9c0c8",
}


def by_group(seconds: Floats, names: Sequence[str]) -> Floats:
    """The seconds of each group of phases: the last dimension goes from *names* to groups."""
    return np.stack([seconds[..., [names.index(name) for name in members(group, names)]].sum(axis=-1)
                     for group in groups(names)], axis=-1)


def breakdown_chart(title: str, note: str, panels: Mapping[str, Mapping[str, Floats]], shown: Sequence[str]) -> Picture:
    """One panel for each metric, with an axis of its own: bars by name, with the seconds of each group that is *shown*.
    """
    bars = sum(map(len, panels.values()))
    return Picture(title, [_stack(name, each, shown) for name, each in panels.items()], note, 10,
                 1.6 + 0.75 * len(panels) + 0.42 * bars, legend="right")


def _stack(title: str, bars: Mapping[str, Floats], shown: Sequence[str]) -> Panel:
    seconds = 1e3 * np.array(list(bars.values())).reshape(len(bars), len(shown))
    begins, totals = np.cumsum(seconds, axis=1) - seconds, seconds.sum(axis=1)
    marks: list[Mark] = [Bars(np.arange(len(bars)), seconds[:, place], group, COLOURS.get(group, GREY),
                              begins[:, place], hover="%{customdata:,.4~g} ms of %{fullData.name}")
                         for place, group in enumerate(shown)]
    marks.append(Bars(np.arange(len(bars)), np.zeros(len(bars)), begins=totals, texts=[*map(number, totals.tolist())],
                      hover=""))
    return Panel(title, _milliseconds(1.12 * float(totals.max(initial=0.0))), Axis.names([*bars]), marks,
                 tall=0.6 + len(bars))


def changes_chart(title: str, note: str, rows: Sequence[Mapping[str, tuple[Floats, Floats]]],
                  shown: Sequence[str]) -> Picture:
    """A row of panels for each metric: from one run's total to the other's, group by group."""
    widest = max(map(len, rows))
    panels = [_waterfall(name, 1e3 * before, 1e3 * after, shown, named=not place)
              for row in rows for place, (name, (before, after)) in enumerate(row.items())]
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
