"""Charts drawn with matplotlib, in ksim's style; loading this module loads matplotlib."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import singledispatch
from math import isnan
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from PIL import Image

from ksim.results.steps import Floats
from ksim.views.charts import (
    FAINT,
    GREY,
    INK,
    PALE,
    Axis,
    Bars,
    Chart,
    Dots,
    Margins,
    Mark,
    Panel,
    Polyline,
    RuleLine,
    Span,
    Text,
    plain,
)
from ksim.views.labels import Named, name_marks

#: Pillow's lowest level of compression: half the time of matplotlib's own PNGs, and files as large.
_LEVEL = 1
#: Dash patterns.
_DASHES: dict[str, Any] = {"": "-", "dash": (0, (4, 3)), "dot": (0, (2, 1.5))}

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
    """Write *figure* as a PNG, or as an SVG by its name, that says nothing of when and by what it was written."""
    with looks():
        if path.suffix.lower() == ".svg":
            mpl.rcParams["svg.hashsalt"] = "ksim"  # which names its parts the same each time
            figure.savefig(path, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
            return path
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
    index: dict[str, Any] = {"y": 1 - 0.1 / height} if fixed else {}
    figure.suptitle(f"{title}\n" if note else title, x=0.012, ha="left", fontsize=size, fontweight="bold", **index)
    if note:
        figure.text(0.012, 1 - 0.44 / height, note, ha="left", va="center", fontsize=9.5, color=FAINT)
    return figure


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


def write_png(figure: Figure, path: Path, dpi: int) -> None:
    """Draw *figure* on white at *dpi* and write it to *path*; the same figure gives the same bytes."""
    figure.set_dpi(dpi)
    canvas = figure.canvas if isinstance(figure.canvas, FigureCanvasAgg) else FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]
    Image.fromarray(np.ascontiguousarray(pixels)).save(path, "png", compress_level=_LEVEL, dpi=(dpi, dpi))
    FigureCanvasAgg(figure)  # releases the drawn canvas: it is part of a cycle, and garbage collection is off


def in_notebook(figure: Figure) -> bytes:
    """*figure* as a notebook shows it: each pixel as one of the page, so that the density of files would be too large.
    """
    file = io.BytesIO()
    with looks():
        figure.savefig(file, format="png", dpi=80)
    return file.getvalue()


def drawn(chart: Chart) -> Figure:
    """*chart* with all its marks, and their names where they cover nothing."""
    with looks():
        figure = canvas(chart.width, chart.height, chart.title, chart.note, chart.margins is not None)
        if chart.footer:
            figure.supxlabel(chart.footer, x=0.012, ha="left", fontsize=8.5, color=FAINT)
        grid = _grid(figure, chart)
        for index, (axes, panel) in enumerate(zip(grid, chart.panels, strict=False)):
            _draw_panel(axes, panel)
            if chart.shared and index < len(chart.panels) - chart.columns:
                axes.set_xlabel("")
        if chart.legend:
            _shared_legend(figure, grid, chart)
        for axes, panel in zip(grid, chart.panels, strict=False):
            named = [name for mark in panel.marks if isinstance(mark, Dots) and not mark.below for name in _named(mark)]
            if any(name.text for name in named):
                name_marks(axes, sorted(named, key=lambda name: -name.radius))
    return figure


def _grid(figure: Figure, chart: Chart) -> list[Axes]:
    """Axes for all panels, row by row; those that are left over in the last row are not seen."""
    if any(panel.wide for panel in chart.panels):
        first, *others = chart.panels
        assert first.wide and len(others) == chart.columns, "one wide panel stands above a row of others"
        grid = figure.add_gridspec(2, chart.columns, height_ratios=(1, 1.15))
        return [figure.add_subplot(grid[0, :]), *(figure.add_subplot(grid[1, at]) for at in range(chart.columns))]
    rows, heights = -(-len(chart.panels) // chart.columns), [panel.tall for panel in chart.panels[::chart.columns]]
    made = grid_of(figure, rows, chart.columns, heights, chart.shared, chart.margins)
    for axes in made[len(chart.panels):]:
        axes.set_visible(False)
    return made


def _named(mark: Dots) -> Iterator[Named]:
    """The places of dots, with their names; marks without names are in the way of others' all the same."""
    for index, (x, y) in enumerate(zip(mark.x, mark.y, strict=True)):
        yield Named(x, y, _sizes(mark)[index] / 2, mark.texts[index] if len(mark.texts) else "")


def _shared_legend(figure: Figure, grid: Sequence[Axes], chart: Chart) -> None:
    found = dict(pair for axes in grid for pair in zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    right = chart.legend == "right"
    figure.legend([*found.values()], [*found], loc="outside right upper" if right else "outside lower center",
                  ncols=1 if right else len(found), title=chart.legend_title or None)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title)
    if panel.beside:
        beside(axes, panel.beside)
    for name, axis in (("x", panel.x), ("y", panel.y)):
        _scale(axes, name, axis)
    for mark in panel.marks:
        _draw(mark, axes)
    for name, axis in (("x", panel.x), ("y", panel.y)):
        _limit(axes, name, axis)
    if panel.legend:
        _legend(axes, panel)


def _legend(axes: Axes, panel: Panel) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    more: dict[str, Any] = {"loc": panel.legend}
    if panel.legend == "above":
        more = {"loc": "lower right", "ncols": len(labels), "bbox_to_anchor": (1, 1.0), "borderaxespad": 0.2}
    elif panel.legend == "below":
        more = {"loc": "upper center", "ncols": len(labels), "bbox_to_anchor": (0.5, -0.18)}
    elif panel.legend == "right":  # in the order of what is stacked up
        handles, labels = handles[::-1], labels[::-1]
        more = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    made = axes.legend(handles, labels, title=panel.legend_title or None, alignment="left", **more)
    for handle in made.legend_handles:
        if isinstance(handle, PathCollection):  # a dot that may stand for large and small ones
            handle.set_sizes([64.0])


#: Both ways of a scale that leaves room for values near 1.
_ROOT = (lambda x: -1 / np.sqrt(np.maximum(x, 1e-3)), lambda x: 1 / np.minimum(x, -1e-3) ** 2)


def _scale(axes: Axes, name: str, axis: Axis) -> None:
    kinds: dict[str, Any] = {"log": {"value": "log"}, "log2": {"value": "log", "base": 2}, "root": {
        "value": "function", "functions": _ROOT}, "symlog": {"value": "symlog", "linthresh": _least(axis)}}
    if axis.scale != "linear":
        getattr(axes, f"set_{name}scale")(**kinds[axis.scale])


def _least(axis: Axis) -> float:
    """The end of the linear part of an axis around 0: its first tick above that."""
    return min((tick for tick in axis.ticks or () if tick > 0), default=1.0)


def _limit(axes: Axes, name: str, axis: Axis) -> None:
    """The title, the ends and the ticks of an axis."""
    drawn = getattr(axes, f"{name}axis")
    getattr(axes, f"set_{name}label")(axis.title)
    ends = (axis.high, axis.low) if axis.reverse else (axis.low, axis.high)
    getattr(axes, f"set_{name}lim")(*ends)
    if axis.ticks is not None:
        drawn.set_major_locator(FixedLocator([*axis.ticks]))
        drawn.set_major_formatter(FixedFormatter([*axis.ticks.values()]))
        drawn.set_minor_locator(NullLocator())
    elif axis.scale == "linear":
        drawn.set_major_locator(MaxNLocator(axis.most))
        drawn.set_major_formatter(FuncFormatter(
            (lambda share, _: f"{100 * share:g} %") if axis.percent else (lambda value, _: plain(value))))
    if axis.reverse:
        axes.tick_params(axis=name, labelcolor=INK)  # type: ignore[arg-type]
    if name == "x" and any("\n" in text for text in (axis.ticks or {}).values()):
        axes.tick_params(axis="x", labelsize=8)
        axes.xaxis.set_label_coords(0.5, 1.8 * axes.xaxis.label.get_position()[1])
    if not axis.grid:
        axes.grid(visible=False, axis=name)  # type: ignore[arg-type]


@singledispatch
def _draw(mark: Mark, axes: Axes) -> None:
    """Draw *mark* into *axes*."""
    raise TypeError(f"no mark: {mark!r}")


@_draw.register
def _line(mark: Polyline, axes: Axes) -> None:
    if mark.waits:
        return
    x, y = np.asarray(mark.x), np.asarray(mark.y, dtype=float)
    style = "steps-post" if mark.steps else "default"
    axes.plot(x, y, color=mark.colour, linewidth=mark.width, linestyle=_DASHES[mark.dash], drawstyle=style,
              label=mark.name if mark.name and mark.area < 0.5 else None, markersize=mark.dots,
              marker="o" if mark.dots and not any(mark.hollow) else None)
    if any(mark.hollow):
        for hollow in (False, True):
            which = np.asarray(mark.hollow) == hollow
            axes.plot(x[which], y[which], "o", color=mark.colour, markersize=mark.dots,
                      markerfacecolor="white" if hollow else mark.colour)
    if len(mark.low):
        axes.fill_between(x, np.asarray(mark.low, float), np.asarray(mark.high, float), color=mark.colour,
                          alpha=mark.area or 0.15, linewidth=0)
    elif mark.area:
        axes.fill_between(x, y, step="post" if mark.steps else None, color=mark.colour, alpha=mark.area, linewidth=0,
                          label=mark.name if mark.name and mark.area >= 0.5 else None)


def _sizes(mark: Dots) -> Sequence[float]:
    return [mark.size] * len(mark.x) if isinstance(mark.size, int | float) else mark.size


@_draw.register
def _dots(mark: Dots, axes: Axes) -> None:
    axes.scatter(mark.x, mark.y, s=np.square(_sizes(mark)), color=mark.colour, alpha=mark.opacity, zorder=3,
                 marker="x" if mark.cross else "o", edgecolor=None if mark.cross else "white", linewidth=0.8,
                 label=mark.name or None)
    for x, y, low, high in zip(mark.x, mark.y, mark.low, mark.high, strict=False):
        if not isnan(low):
            line = ([low, high], [y, y]) if mark.across else ([x, x], [low, high])
            axes.plot(*line, color=FAINT if mark.opacity < 1 else mark.colour, linewidth=1.0, markersize=5, zorder=2.5,
                      marker="|" if mark.across else "_")
    if mark.below:
        for x, y, text in zip(mark.x, mark.y, mark.texts, strict=True):
            _draw(Text(text, x, y, INK, valign="top", shift=(7, -4), boxed=True), axes)


@_draw.register
def _bars(mark: Bars, axes: Axes) -> None:
    at, begin = np.asarray(mark.at, dtype=float), mark.starts
    edges = begin, begin + np.asarray(mark.lengths, dtype=float)
    sides = at - mark.thickness / 2, at + mark.thickness / 2
    boxes(axes, *edges, *sides, mark.colour, mark.name) if mark.across else boxes(axes, *sides, *edges, mark.colour,
                                                                                  mark.name)
    for index, end, text in zip(at.tolist(), np.maximum(*edges).tolist(), mark.texts, strict=False):
        if mark.across:
            _draw(Text(text, end, index, INK, valign="center", shift=(4, 0)), axes)
        else:
            _draw(Text(text, index, end, INK, align="center", shift=(0, 4)), axes)


def boxes(axes: Axes, left: Floats, right: Floats, bottom: Floats, top: Floats, colour: str | Sequence[str],
          label: str = "") -> None:
    """Bars from *left* to *right* and from *bottom* to *top*, as one object, which draws faster than one for each."""
    corners: Any = np.stack([left, bottom, right, bottom, right, top, left, top], axis=1).reshape(-1, 4, 2)
    axes.add_collection(PolyCollection(corners, facecolors=colour, linewidths=0, label=label or None))


@_draw.register
def _rule(mark: RuleLine, axes: Axes) -> None:
    draw = axes.axhline if mark.across else axes.axvline
    draw(mark.at, color=mark.colour, linewidth=mark.width, linestyle=_DASHES[mark.dash], label=mark.name or None)


@_draw.register
def _span(mark: Span, axes: Axes) -> None:
    looks: dict[str, Any] = {"facecolor": mark.colour, "linewidth": 0, "alpha": mark.opacity, "zorder": 0}
    if mark.ends is not None:
        low, high = mark.ends
        boxes_of = PolyCollection([[(mark.low, low), (mark.high, low), (mark.high, high), (mark.low, high)]], **looks)
        axes.add_collection(boxes_of, autolim=False)
    else:
        (axes.axhspan if mark.across else axes.axvspan)(mark.low, mark.high, **looks)


@_draw.register
def _text(mark: Text, axes: Axes) -> None:
    of = {"axes": "data", "panel": "axes fraction", "over": axes.get_xaxis_transform()}[mark.of]
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0} if mark.boxed else None
    axes.annotate(mark.text, (mark.x, mark.y), xycoords=of, xytext=mark.shift, textcoords="offset points",  # type: ignore[arg-type]
                  ha=mark.align, va=mark.valign, color=mark.colour, rotation=90 if mark.upright else 0,
                  fontsize=mark.size, fontweight="bold" if mark.bold else "normal", bbox=box, zorder=4,
                  annotation_clip=False)
