"""Charts as plain values: panels with axes, and the marks in them.

`ksim.views.figures` makes them.  `ksim.views.drawing` draws them with matplotlib, and `ksim.views.page.drawing` with
Plotly; neither decides what is shown.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from ksim.results.steps import Floats
from ksim.views.wording import measure

#: Colours that people with any colour vision tell apart, on white; the page has a twin of each for the dark.
BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, GOLD, PINK = (
    "#2f6db5", "#d9822b", "#2e8b68", "#7a5fb5", "#c8453c", "#2b98a3", "#b8960c", "#b9609a")
GREY, INK, FAINT, PALE, PAPER = "#9aa3ad", "#1f2630", "#5d6875", "#e3e7ec", "#ffffff"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, GOLD, PINK)
#: Numbers, or texts, which stand in their order.
Values = Sequence[Any] | NDArray[Any]


@frozen(eq=False)
class Polyline:
    """A curve through points, with `steps` one that stays at each value until the next point.

    `area` is the opacity of what is below it, or of the band between `low` and `high`, where it has one.  `dots` is the
    diameter of a dot at each point, in points; those that are `hollow` are rings.  One that `waits` is shown on a page
    after a click on its name, and not on paper.
    """

    x: Values
    y: Values
    name: str = ""
    colour: str = BLUE
    dash: str = ""
    width: float = 1.8
    steps: bool = False
    area: float = 0.0
    dots: float = 0.0
    hollow: Sequence[bool] = ()
    low: Values = ()
    high: Values = ()
    waits: bool = False
    hover: str = "%{y:,.4~g} at %{x:,.4~g}"


@frozen(eq=False)
class Dots:
    """Marks of a `size`, a diameter in points, or one for each.

    `texts` stand beside them, those that are "" nowhere: each where it covers nothing, or all `below` on the right.
    `low` and `high` are the ends of bars through them, which go `across` or up; nan is none.  `hover` is said of each.
    """

    x: Values
    y: Values
    name: str = ""
    colour: str = BLUE
    size: float | Sequence[float] = 5.0
    cross: bool = False
    texts: Sequence[str] = ()
    below: bool = False
    low: Values = ()
    high: Values = ()
    across: bool = False
    hover: Sequence[str] = ()
    opacity: float = 1.0


@frozen(eq=False)
class Bars:
    """Bars at places along one axis, `across` from left to right or up, each of a length from where it begins.

    `colour` may be one for each.  `texts` stand at their ends.
    """

    at: Values
    lengths: Values
    name: str = ""
    colour: str | Sequence[str] = BLUE
    begins: Values = ()
    texts: Sequence[str] = ()
    across: bool = True
    thickness: float = 0.7
    hover: str = "%{customdata:,.4~g}"

    @property
    def starts(self) -> Floats:
        return np.asarray(self.begins, float) if len(self.begins) else np.zeros(len(self.lengths))


@frozen
class RuleLine:
    """A line through the whole panel at a value, upright or `across`."""

    at: float
    colour: str = FAINT
    across: bool = False
    dash: str = "dash"
    width: float = 1.0
    name: str = ""


@frozen
class Span:
    """What lies between two values, from edge to edge of the panel, or between two `ends` on the other axis, too."""

    low: float
    high: float
    colour: str = GREY
    across: bool = False
    opacity: float = 0.1
    ends: tuple[float, float] | None = None


@frozen
class Text:
    """A text at a place of the axes, at shares of the width and height of the "panel", or "over" x at a share of the
    height.

    `shift` moves it by so many points.
    """

    text: str
    x: float
    y: float
    colour: str = FAINT
    of: str = "axes"
    align: str = "left"
    valign: str = "bottom"
    shift: tuple[float, float] = (0.0, 0.0)
    upright: bool = False
    size: float = 8.5
    bold: bool = False
    boxed: bool = False


Mark = Polyline | Dots | Bars | RuleLine | Span | Text


@frozen(eq=False)
class Axis:
    """An axis and its ends, where they are not those of the marks; `ticks` are the only ones, with their texts.

    `scale` is "linear", "log", "log2", "symlog", which is linear around 0, or "root", which shows -1 / sqrt(value).
    Else there are at most `most` ticks, in plain numbers or as per cent; with `reverse`, the least value is at the top.
    """

    title: str = ""
    low: float | None = None
    high: float | None = None
    scale: str = "linear"
    ticks: Mapping[float, str] | None = None
    percent: bool = False
    reverse: bool = False
    most: int = 8
    grid: bool = True

    @classmethod
    def log(cls, title: str, low: float, high: float, most: int = 8, prefixed: bool = False) -> "Axis":
        """A logarithmic axis from *low* to *high*."""
        shown = prefix if prefixed else plain
        return cls(title, low, high, "log", {tick: shown(tick) for tick in decades(low, high, most)})

    @classmethod
    def names(cls, names: Sequence[str], shown: bool = True) -> "Axis":
        """An axis of *names* from top to bottom, which need not be *shown* beside others that have the same ones."""
        ticks = {float(index): name if shown else "" for index, name in enumerate(names)}
        return cls("", -0.6, len(names) - 0.4, ticks=ticks, reverse=True, grid=False)


@frozen(eq=False)
class Panel:
    """Marks between two axes, with a title, and a fainter text `beside` it.

    `legend` is where the names of marks are listed, as matplotlib says it, or "above", "below" or "right" of the panel.
    A `wide` one has a row of its own.
    """

    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    beside: str = ""
    legend: str = ""
    legend_title: str = ""
    tall: float = 1.0
    wide: bool = False


@frozen
class Margins:
    """Inches around panels: at the sides of the figure, and between two `columns` and two `rows`."""

    left: float = 0.75
    right: float = 0.25
    top: float = 0.95
    bottom: float = 0.55
    columns: float = 0.8
    rows: float = 0.8


@frozen(eq=False)
class Chart:
    """A figure of *panels* in so many columns, `width` x `height` inches on paper.

    Unless it has `margins`, matplotlib measures all texts to lay it out, which takes longer than drawing.  That is for
    figures with labels of any length.  `shared` panels have one x axis.  `legend` is one for all of them, under
    `legend_title`: "right" of the figure or "below" it.
    """

    title: str
    panels: Sequence[Panel] = field(repr=False)
    note: str = ""
    width: float = 8.0
    height: float = 5.0
    columns: int = 1
    margins: Margins | None = None
    shared: bool = False
    legend: str = ""
    legend_title: str = ""
    footer: str = field(default="", kw_only=True)


def plain(value: float) -> str:
    """A number of an axis, with separators of thousands."""
    return f"{value:,.0f}" if value >= 10 and value % 1 == 0 else f"{value:g}"


def prefix(value: float) -> str:
    """A large number of an axis, with a unit prefix."""
    return measure(value, "").strip().replace(".00", "").replace(".0", "")


def decades(low: float, high: float, most: int) -> list[float]:
    """Ticks of a logarithmic axis from *low* to *high*, at most about so many."""
    spanned = max(math.log10(high / low), 0.1)
    factors = next((each for each in ((1.0, 2.0, 5.0), (1.0, 3.0)) if len(each) * spanned <= most), (1.0,))
    every = max(1, math.ceil(spanned / most))
    first = every * (math.floor(math.log10(low)) // every)
    powers = range(first, math.ceil(math.log10(high)) + 1, every)
    ticks = (float(f"{factor * 10.0 ** power:.12g}") for power in powers for factor in factors)
    return [tick for tick in ticks if low <= tick <= high]


def wide_axis(title: str, values: Sequence[float], ratio: float = 20.0) -> Axis:
    """An axis of *values*, which is logarithmic where they differ by more than this factor."""
    if values and min(values) > 0 and max(values) > ratio * min(values):
        room = (max(values) / min(values)) ** 0.08
        return Axis.log(title, min(values) / room, max(values) * room, most=9)
    if not values:
        return Axis(title)
    room = 0.08 * ((max(values) - min(values)) or abs(max(values)) or 1.0)
    return Axis(title, min(values) - room, max(values) + room)


def reach(values: Floats, room: float = 2.0) -> float:
    """The upper end of an axis from 0 that shows *values*.

    It is the maximum, unless that is more than three times the value that nearly all (98 %, and at least the smaller
    half) stay below.  Then it is *room* times that value, so that a few values do not squeeze the others.
    """
    if not len(values):
        return 0.0
    most, bulk = float(values.max()), float(np.quantile(values, 0.98, method="lower"))
    return most if most <= 3 * bulk or bulk <= 0 else room * bulk
