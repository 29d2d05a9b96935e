"""Ticks that are drawn at once: matplotlib's own are five objects each, which took half of the time of a figure."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.transforms import offset_copy

#: Points between axes and their tick labels.
_PAD = 5.0


def settle(axes: Axes, grid_colour: str) -> None:
    """Replace the axes' ticks and labels by a grid and texts where they would be; nothing may change afterwards."""
    for axis, transform in ((axes.xaxis, axes.get_xaxis_transform()), (axes.yaxis, axes.get_yaxis_transform())):
        low, high = sorted(axis.get_view_interval())
        places = [place for place in axis.get_majorticklocs().tolist() if low <= place <= high]
        texts = axis.get_major_formatter().format_ticks(places)
        _lay(axes, axis, transform, places, texts, grid_colour)
        axis.set_visible(False)


def _lay(axes: Axes, axis: Axis, transform: Any, places: list[float], texts: list[str], grid_colour: str) -> None:
    shown, horizontal = axis.get_tick_params(), axis is axes.xaxis
    if shown.get("gridOn"):
        ends = [[(place, 0), (place, 1)] if horizontal else [(0, place), (1, place)] for place in places]
        axes.add_collection(LineCollection(ends, colors=grid_colour, linewidths=0.8, transform=transform, zorder=0.5),
                            autolim=False)
    if shown.get("labelbottom" if horizontal else "labelleft"):
        figure: Any = axes.figure
        x, y = (0.0, -_PAD) if horizontal else (-_PAD, 0.0)
        away = offset_copy(transform, figure, x, y, units="points")
        sides: Any = {"ha": "center", "va": "top"} if horizontal else {"ha": "right", "va": "center"}
        for place, text in zip(places, texts, strict=True):
            left, bottom = (place, 0.0) if horizontal else (0.0, place)
            axes.text(left, bottom, text, transform=away, fontsize=shown["labelsize"], color=shown["labelcolor"],
                      **sides)
    if name := axis.label.get_text():
        left, bottom = axis.label.get_position()
        axes.text(left, bottom, name, transform=axes.transAxes, ha="center",
                  va="top" if horizontal else "bottom", rotation=axis.label.get_rotation())
