"""The style of ksim's figures."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from attrs import frozen
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from PIL import Image

from ksim.report.wording import measure
from ksim.results.steps import Floats

INK, FAINT, PALE = "#22272e", "#6b7480", "#e4e8ec"
PALETTE = ("#3d6fb4", "#e08b3a", "#4f9e73", "#7d68b0", "#c9554a", "#3fa5ad", "#d6b043", "#c47ba3")
BLUE, ORANGE, GREEN, PURPLE, RED = PALETTE[:5]
GREY = "#a9b0b8"
BOUND_COLOURS = {"memory": BLUE, "compute": ORANGE, "communication": PURPLE, "launch": GREY}

#: Pillow's lowest level of compression: half the time of matplotlib's own PNGs, and files as large.
_LEVEL = 1
#: Dash pattern of lines that are not data.
DASHES = (0, (4, 3))

_LOOKS: Any = {
    "font.size": 9.5,
    "text.color": INK,
    # Hinting takes twice as long, and distorts letters that have enough pixels.
    "text.hinting": "none",
    # Names are not formulas, whatever characters they have.
    "text.parse_math": False,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    # Otherwise matplotlib lays out every tick label to find a place for the title.
    "axes.titley": 1.0,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.minor.visible": False,
    "ytick.minor.visible": False,
    # The grid shows the ticks.
    "xtick.bottom": False,
    "ytick.left": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
}
_DPI = 150
#: Size of tick labels, in points.
_SMALL = 9.0


@contextmanager
def looks() -> Iterator[None]:
    """Draw in ksim's style, without the user's matplotlibrc."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_LOOKS)
        yield


def write(figure: Figure, path: Path) -> Path:
    """Write *figure* as a PNG that says nothing of when and by what it was written."""
    write_png(figure, path, _DPI)
    return path


def canvas(width: float, height: float, title: str, note: str = "", fixed: bool = False) -> Figure:
    """A figure of *width* x *height* inches with a title, and a fainter line under it.

    Unless it is *fixed*, matplotlib measures all texts to lay it out, which takes longer than drawing.  That is for
    figures with labels of any length.
    """
    layout: Any = "none" if fixed else None  # matplotlib accepts it, but its types do not say so
    figure = Figure(figsize=(width, height), dpi=_DPI, layout=layout)
    FigureCanvasAgg(figure)  # used to measure texts; without it, matplotlib makes a canvas for each
    # An empty line keeps room for the note, because a figure title has one style.
    size = min(13.0, 13.0 * 8.6 * width / max(len(title), 1))
    # A layout makes room for it only if it has no position of its own.
    place: dict[str, Any] = {"y": 1 - 0.1 / height} if fixed else {}
    figure.suptitle(f"{title}\n" if note else title, x=0.012, ha="left", fontsize=size, fontweight="bold", **place)
    if note:
        figure.text(0.012, 1 - 0.44 / height, note, ha="left", va="center", fontsize=9.5, color=FAINT)
    return figure


@frozen
class Margins:
    """Inches around axes: at the sides of the figure, and between two `columns` and two `rows`."""

    left: float = 0.75
    right: float = 0.25
    top: float = 0.95
    bottom: float = 0.55
    columns: float = 0.8
    rows: float = 0.8


def grid_of(figure: Figure, rows: int, columns: int, heights: Sequence[float] | None = None,
            share_x: bool = False, margins: Margins | None = None) -> list[Axes]:
    """Axes of *rows* x *columns*, row by row; in a fixed figure they have *margins*."""
    if margins is None:
        grid = figure.subplots(rows, columns, sharex=share_x, squeeze=False, height_ratios=heights)
        return [axes for row in grid for axes in row]
    return _placed(figure, columns, heights or [1.0] * rows, share_x, margins)


def _placed(figure: Figure, columns: int, heights: Sequence[float], share_x: bool, margins: Margins) -> list[Axes]:
    """Axes with *margins*; the rows share the rest of the height in these proportions."""
    (width, height), found = figure.get_size_inches().tolist(), list[Axes]()
    wide = (width - margins.left - margins.right - (columns - 1) * margins.columns) / columns
    room = height - margins.top - margins.bottom - (len(heights) - 1) * margins.rows
    top = height - margins.top
    for row, share in enumerate(heights):
        tall = room * share / sum(heights)
        for column in range(columns):
            left = margins.left + column * (wide + margins.columns)
            axes = figure.add_axes((left / width, (top - tall) / height, wide / width, tall / height),
                                   sharex=found[0] if share_x and found else None)
            axes.xaxis.set_label_coords(0.5, -0.27 / tall)
            axes.yaxis.set_label_coords(-0.58 / wide, 0.5)
            axes.tick_params(axis="x", labelbottom=not share_x or row == len(heights) - 1, labelcolor=FAINT,
                             labelsize=_SMALL)
            axes.tick_params(axis="y", labelcolor=FAINT, labelsize=_SMALL)
            found.append(axes)
        top -= tall + margins.rows
    return found


def beside(axes: Axes, text: str, colour: str = FAINT) -> None:
    """Write *text* at the far end of the title line."""
    axes.set_title(text, loc="right", fontsize=9, fontweight="normal", color=colour)


def percent_axis(axes: Axes, full: bool = False) -> None:
    """Show shares on the vertical axis as per cent, from 0 and, if *full*, to 100."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_ylim(0, 1.02 if full else None)


def log_axis(axes: Axes, low: float, high: float, room: float) -> None:
    """Make the horizontal axis logarithmic from *low* to *high*, with about *room* plain numbers."""
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(decades(low, high, room))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(PLAIN)


def decades(low: float, high: float, room: float) -> LogLocator:
    """Ticks of a logarithmic axis from *low* to *high*, at most about *room* of them."""
    spanned = max(math.log10(high / low), 0.1)
    fits = next((subs for subs in ((1.0, 2.0, 5.0), (1.0, 3.0)) if len(subs) * spanned <= room), (1.0,))
    return LogLocator(base=10.0 ** max(1, math.ceil(spanned / room)), subs=fits, numticks=99)


def linear_ticks(axes: Axes, x: int = 8, y: int = 5) -> None:
    """At most so many ticks on linear axes, with plain numbers."""
    for axis, count in ((axes.xaxis, x), (axes.yaxis, y)):
        axis.set_major_locator(MaxNLocator(count))
        axis.set_major_formatter(PLAIN)


def boxes(axes: Axes, left: Floats, right: Floats, bottom: Floats, top: Floats, colour: str, label: str = "",
          edge: float = 0.0) -> None:
    """Bars from *left* to *right* and from *bottom* to *top*, with white edges of *edge* points.

    They are one object, which draws faster than one for each.
    """
    corners: Any = np.stack([left, bottom, right, bottom, right, top, left, top], axis=1).reshape(-1, 4, 2)
    axes.add_collection(PolyCollection(corners, facecolors=colour, edgecolors="white", linewidths=edge, label=label),
                        autolim=False)


def reach(values: Floats, room: float = 2.0) -> float:
    """The upper end of an axis from 0 that shows *values*.

    It is the maximum, unless that is more than three times the value that nearly all (98 %, and at least the smaller
    half) stay below.  Then it is *room* times that value, so that a few values do not squeeze the others.
    """
    if not len(values):
        return 0.0
    most, bulk = float(values.max()), float(np.quantile(values, 0.98, method="lower"))
    return most if most <= 3 * bulk or bulk <= 0 else room * bulk


#: Plain numbers with separators of thousands.
PLAIN = FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 and value % 1 == 0 else f"{value:g}")
#: Large numbers with unit prefixes.
PREFIXED = FuncFormatter(lambda value, _: measure(value, "").strip().replace(".00", "").replace(".0", ""))


def write_png(figure: Figure, path: Path, dpi: int) -> None:
    """Draw *figure* on white at *dpi* and write it to *path*; the same figure gives the same bytes."""
    figure.set_dpi(dpi)
    canvas = figure.canvas if isinstance(figure.canvas, FigureCanvasAgg) else FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]
    Image.fromarray(np.ascontiguousarray(pixels)).save(path, "png", compress_level=_LEVEL, dpi=(dpi, dpi))
    FigureCanvasAgg(figure)  # releases the drawn canvas: it is part of a cycle, and garbage collection is off
