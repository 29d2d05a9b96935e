"""How ksim's figures look."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

INK, FAINT, PALE = "#22272e", "#6b7480", "#e4e8ec"
PALETTE = ("#3d6fb4", "#e08b3a", "#4f9e73", "#7d68b0", "#c9554a", "#3fa5ad", "#d6b043", "#c47ba3")
BLUE, ORANGE, GREEN, PURPLE, RED = PALETTE[:5]
GREY = "#a9b0b8"
BOUND_COLOURS = {"memory": BLUE, "compute": ORANGE, "communication": PURPLE, "launch": GREY}

#: Dashes of lines that are not data.
DASHES = (0, (4, 3))

_LOOKS: Any = {
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
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
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "savefig.dpi": 150,
}


@contextmanager
def looks() -> Iterator[None]:
    """Draw with ksim's looks and nothing of the user's matplotlibrc."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_LOOKS)
        yield


def write(figure: Figure, path: Path) -> Path:
    """Write *figure* as a PNG that says nothing of when and by what it was written."""
    figure.savefig(path, format="png", metadata={"Software": None})
    return path


def canvas(width: float, height: float, title: str, note: str = "") -> Figure:
    """A figure of *width* x *height* inches with a headline, and a fainter line under it."""
    figure = Figure(figsize=(width, height))
    # An empty line keeps room for the note, which a figure title cannot style apart.
    figure.suptitle(f"{title}\n" if note else title, x=0.012, ha="left", fontsize=13, fontweight="bold")
    if note:
        figure.text(0.012, 1 - 0.42 / height, note, ha="left", va="center", fontsize=9.5, color=FAINT)
    return figure


def grid_of(figure: Figure, rows: int, columns: int, heights: Sequence[float] | None = None,
            share_x: bool = False) -> list[Axes]:
    """Axes of *rows* x *columns*, row by row."""
    grid = figure.subplots(rows, columns, sharex=share_x, squeeze=False, height_ratios=heights)
    return [axes for row in grid for axes in row]


def beside(axes: Axes, text: str, colour: str = FAINT) -> None:
    """Write *text* at the far end of the title line."""
    axes.set_title(text, loc="right", fontsize=9, fontweight="normal", color=colour)


def percent_axis(axes: Axes, full: bool = False) -> None:
    """Let the vertical axis show shares as per cent, from nothing and, if *full*, to everything."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    axes.set_ylim(0, 1.02 if full else None)


def log_axis(axes: Axes, low: float, high: float, room: float) -> None:
    """Let the horizontal axis be logarithmic from *low* to *high*, with plain numbers, about *room* of them."""
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    decades = max(math.log10(high / low), 0.1)
    subs = (1.0, 2.0, 5.0) if 3 * decades <= room else (1.0, 3.0) if 2 * decades <= room else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=99))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(PLAIN)


#: Numbers as they are, thousands apart.
PLAIN = FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}")
