"""Figures of ranks that differ: one step, in which each computes, waits for others, or is in a collective.

Where experts are drawn, a panel has the rows of the fullest, the median and the emptiest rank, layer by layer.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ksim.flow.events import WAITS
from ksim.results.history import History
from ksim.results.ranks import Ranks, ShownStep
from ksim.results.steps import Floats
from ksim.views.charts import BLUE, GREEN, GREY, ORANGE, RED, TEAL, Axis, Bars, Mark, Panel, Polyline, RuleLine
from ksim.views.figures import Picture
from ksim.views.wording import number, percent

#: How tables call the parts of a GPU's time, and say what causes are.
TITLES = {"busy": "busy", "collectives": "in collectives", "late": "begins late",
          **{cause: f"waits: {cause}" for cause in WAITS}, "idle": "idle"}
WHY = {"requests": "others have longer batches", "experts": "others have fuller experts", "clock": "others are slower",
       "host": "others' hosts are late", "link": "links are slower"}
#: Shares of the time below which a cause is not worth a column or a row.
LEAST = 5e-4
#: The most ranks in a picture: those that others wait for, and those that wait.
MOST = 16
#: Meetings on either side of the one with the longest wait, in the panel that is closer.
_BESIDE = 3
#: What ranks do, and its colour.
_LOOKS = {"computes": BLUE, "waits for others": ORANGE, "in a collective": TEAL, "not launched": GREY}
#: The ranks of `ShownStep.loads`, and their colours.
_LOADS = {"fullest rank": RED, "median rank": BLUE, "emptiest rank": GREEN}
#: Inches of the panel that shows them.
_LOADS_HEIGHT = 2.4


def shown_parts(ranks: Ranks) -> list[str]:
    """The parts of GPUs' time that tables show: what all have, and what is there; causes in order of their seconds."""
    shares = ranks.shares()
    there = [part for part in (*WAITS, "late") if abs(shares[part]) >= LEAST]
    return ["busy", "collectives", *sorted(there, key=lambda part: (part == "late", -shares[part])), "idle"]


def path_rows(ranks: Ranks) -> Iterator[tuple[str, float, float]]:
    """What the critical path of steps consists of: a name, its seconds, and their share of all steps."""
    for name, seconds in ranks.path.items():
        share = seconds / ranks.step_seconds if ranks.step_seconds else 0.0
        if name not in WHY or abs(share) >= LEAST:
            yield (f"{name}: {WHY[name]}" if name in WHY else name), seconds, share


def share(value: float) -> str:
    """*value* in per cent, 0 where rounding alone makes it something else."""
    return percent(value if abs(value) >= LEAST else 0.0)


def rank_charts(history: History, subject: str) -> Iterator[tuple[str, Picture]]:
    """Every figure of ranks that a run has data for, with its name."""
    if (step := ShownStep.slowest(history.log, MOST)) is not None:
        yield "ranks", step_chart(step, f"Ranks: {subject}")


def step_chart(step: ShownStep, title: str = "") -> Picture:
    """A row for each rank of *step* over its time; with many meetings, the longest wait also from close by."""
    stage = f", stage {step.stage}" if step.stage else ""
    note = (f"the step of engine {step.engine}{stage} at {number(step.start)} s, in which ranks waited"
            f" {percent(_waited(step))} of the time")
    names = [f"GPU {gpu}" for gpu in step.gpus.tolist()]
    panels = [Panel("The whole step", Axis("milliseconds from its start", 0, 1e3 * step.seconds), Axis.names(names),
                    _marks(step, 0.0, step.seconds), legend="above")]
    if len(step.names) > 4 * _BESIDE:
        begin, end, label = _close(step)
        panels.append(Panel(f"Around the longest wait after the first, for {label or 'the end of the step'}",
                            Axis("milliseconds from the start of the step", 1e3 * begin, 1e3 * end), Axis.names(names),
                            _marks(step, begin, end)))
    each = 1.1 + 0.21 * len(names)
    height = 1.6 + len(panels) * each
    if step.loads.size:
        panels.append(_loads_panel(step.loads, _LOADS_HEIGHT / each))
        height += _LOADS_HEIGHT
    return Picture(title, panels, note, 10, height)


def _loads_panel(loads: Floats, tall: float) -> Panel:
    """The rows of the fullest, the median and the emptiest rank over the mean, layer by layer."""
    layers = np.arange(loads.shape[1])
    marks = [Polyline(layers, load, name, colour, width=1.4, dots=3.0, hover="%{y:,.3~f} x the mean in layer %{x}")
             for (name, colour), load in zip(_LOADS.items(), loads, strict=True)]
    return Panel("Rows by layer", Axis("layers with experts, of this stage", -0.5, len(layers) - 0.5),
                 Axis("x the mean", 0, 1.08 * float(loads.max())), [RuleLine(1.0, across=True), *marks],
                 legend="above", tall=tall)


def _waited(step: ShownStep) -> float:
    return float(np.nansum(step.waiting)) / max(len(step.gpus) * step.seconds, 1e-300)


def _close(step: ShownStep) -> tuple[float, float, str]:
    """From when to when some meetings around the one with the longest wait last, and what that is called.

    It is not the first one, for which ranks wait that begin late: the whole step shows those.
    """
    place = 1 + int(np.nan_to_num(step.waiting[:, 1:]).max(axis=0).argmax())
    first, last = max(0, place - _BESIDE), min(len(step.names) - 1, place + _BESIDE)
    return float(np.nanmin(step.ready[:, first])), float(np.nanmax(step.left[:, last])), step.names[place]


def _marks(step: ShownStep, begin: float, end: float) -> Sequence[Mark]:
    """What ranks do from *begin* to *end*, as bars of milliseconds."""
    parts = {"computes": (step.ready, step.came), "waits for others": (step.came, np.maximum(step.came, step.latest)),
             "in a collective": (np.maximum(step.came, step.latest), step.left),
             "not launched": (np.zeros((len(step.gpus), 1)), step.started[:, None])}
    return [mark for name, (since, until) in parts.items() for mark in _bars(name, since, until, begin, end)]


def _bars(name: str, since: Floats, until: Floats, begin: float, end: float) -> Iterator[Bars]:
    since, until = np.maximum(since, begin), np.minimum(until, end)
    rows, places = np.nonzero(until - since > 0)  # nan is not above 0
    if len(rows):
        yield Bars(rows.astype(float), 1e3 * (until - since)[rows, places], name, _LOOKS[name],
                   begins=1e3 * since[rows, places], across=True, hover="%{customdata:,.4~g} ms")
