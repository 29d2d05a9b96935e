"""Names beside marks, where there is room for them."""

from collections.abc import Sequence
from itertools import pairwise
from math import hypot
from typing import cast

import numpy as np
from attrs import define, frozen
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from numpy.typing import NDArray

from ksim.views.charts import GREY, INK

Floats = NDArray[np.float64]

#: The distances of a name from its mark, in points, and the number of directions.
_DISTANCES = (3, 8, 14, 21, 29, 38, 48, 60, 74, 90, 110)
_DIRECTIONS = 16
#: Names further away than this, in points, have a line to their mark.  Crossings are tested at so many points of it.
_LED, _DOTS = 7, 30
#: Margin around a name, in points.
_MARGIN = 1.5
#: Costs of a place, beside the distance in points: the name covers another one or leaves the axes, it touches a mark or
#: line; its own line crosses a name, another such line, or a mark.
_COVERED, _TOUCHED, _CROSSED, _PASSED = 500.0, 60.0, 20.0, 1.0
#: How often each name is placed again when all others have their places.
_SWEEPS = 2
#: The number of places whose lines are tested together.
_AT_ONCE = 8


@frozen
class Named:
    """The position of a mark in data coordinates, its radius in points, and its name; "" writes nothing."""

    x: float
    y: float
    radius: float
    text: str = ""


@define(eq=False)
class _Label:
    """A name and its possible places.

    `offsets` from the mark and `distances` are in points.  For each place, `boxes` are in pixels, and so are `dots`
    along the line to the mark.
    """

    note: Annotation
    radius: float
    extent: tuple[float, float]
    offsets: Floats
    distances: Floats
    boxes: Floats
    dots: Floats
    chosen: int | None = None

    @classmethod
    def of(cls, axes: Axes, mark: Named, index: Floats, size: float, point: float) -> "_Label":
        note = axes.annotate(mark.text, (mark.x, mark.y), xytext=(0, 0), textcoords="offset points", fontsize=size,
                             color=INK, zorder=6, ha="center", va="center", annotation_clip=False)
        note.set_in_layout(False)
        box = note.get_window_extent()
        width, height = box.width / point, box.height / point
        # To the right first, then further and further to both sides of it.
        steps = np.array([(step + 1) // 2 * (1 if step % 2 else -1) for step in range(_DIRECTIONS)])
        angles = np.tile(2 * np.pi * steps / _DIRECTIONS, len(_DISTANCES))
        distances = np.repeat(np.array(_DISTANCES, dtype=float), _DIRECTIONS)
        towards = np.column_stack([np.cos(angles), np.sin(angles)])
        sides = np.clip(2.5 * towards, -1, 1)  # between the corners, where the name is nearly above or below
        offsets = (mark.radius + distances)[:, None] * towards + sides * (width / 2, height / 2)
        middles, half = index + offsets * point, (np.array([width, height]) / 2 + _MARGIN) * point
        shares = np.linspace(0.1, 0.8, _DOTS)
        dots = index + (offsets * point)[:, None, :] * shares[:, None]
        dots[distances <= _LED] = np.nan  # no line, so nothing is crossed
        return cls(note, mark.radius, (width, height), offsets, distances,
                   np.column_stack([middles - half, middles + half]), dots)

    def place(self, names: Floats, lines: Floats, solid: Floats, marks: Floats, inside: Floats) -> None:
        """Choose a place, given the boxes of other names, the dots of their lines, and everything else.

        Lines take longest to test, and only make a place worse.  So places are tried in the order of their cost
        without a line, until no later place can be better.
        """
        costs = self._costs(names, lines, solid, inside)
        order = np.argsort(costs, kind="stable")
        best, chosen = np.inf, int(order[0])
        for begin in range(0, len(order), _AT_ONCE):
            few = order[begin: begin + _AT_ONCE]
            if costs[few[0]] > best:
                break
            whole = costs[few] + self._crossings(few, names, lines, marks)
            for cost, index in zip(whole.tolist(), few.tolist(), strict=True):
                best, chosen = min((best, chosen), (cost, index))
        self.chosen = chosen

    def _costs(self, names: Floats, lines: Floats, solid: Floats, inside: Floats) -> Floats:
        """The cost of each place without the line to the mark."""
        boxes = self.boxes
        outside = (boxes[:, :2] < inside[:2]).any(axis=1) | (boxes[:, 2:] > inside[2:]).any(axis=1)
        covered = _overlap(boxes, names).sum(axis=1) + outside
        touched = np.sqrt(_overlap(boxes, solid).sum(axis=1)) + _overlap(boxes, _tiny(lines)).any(axis=1)
        return np.asarray(self.distances + _COVERED * covered + _TOUCHED * touched)

    def _crossings(self, places: NDArray[np.int64], names: Floats, lines: Floats, marks: Floats) -> Floats:
        """The cost of the lines from these *places* to the mark."""
        dots = _tiny(self.dots[places].reshape(-1, 2))
        crossed = _overlap(dots, names).any(axis=1).reshape(-1, _DOTS).sum(axis=1) \
            + _overlap(dots, _tiny(lines, 3)).any(axis=1).reshape(-1, _DOTS).any(axis=1)
        passed = _overlap(dots, marks).any(axis=1).reshape(-1, _DOTS).sum(axis=1)
        return np.asarray(_CROSSED * crossed + _PASSED * passed)

    def draw(self, axes: Axes) -> None:
        """Move the name to its place, with a thin line from the mark's rim to its nearest point."""
        assert self.chosen is not None, "names are placed before they are drawn"
        (x, y), (width, height) = self.offsets[self.chosen], self.extent
        self.note.set_position((x, y))
        if self.distances[self.chosen] > _LED:
            end = (min(max(0, x - width / 2), x + width / 2), min(max(0, y - height / 2), y + height / 2))
            line = axes.annotate("", self.note.xy, xytext=end, textcoords="offset points", annotation_clip=False,
                                 arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.7, "shrinkA": 0,
                                             "shrinkB": self.radius})
            line.set_in_layout(False)


def name_marks(axes: Axes, marks: Sequence[Named], size: float = 8.5) -> None:
    """Write the names of *marks* clear of each other, of all marks, lines and texts; the first marks choose first.

    The axes must be complete except for the names.  If the figure has a layout engine, a trial layout gives the
    positions.
    """
    figure = cast("Figure", axes.figure)
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
    inside, point = np.array(axes.get_window_extent().extents), figure.dpi / 72
    places = np.array([axes.transData.transform((mark.x, mark.y)) for mark in marks]).reshape(-1, 2)
    radii = np.array([mark.radius * point for mark in marks])[:, None]
    discs = np.column_stack([places - radii, places + radii])
    solid = np.concatenate([discs, _line_boxes(axes)])
    fixed = [text.get_window_extent().extents for text in axes.texts]
    if (legend := axes.get_legend()) is not None:
        fixed.append(legend.get_window_extent().extents)
    labels = [_Label.of(axes, mark, index, size, point) for mark, index in zip(marks, places, strict=True) if mark.text]
    for sweep in range(1 + _SWEEPS):
        before = [label.chosen for label in labels]
        for label in labels:
            others = [(other, other.chosen) for other in labels if other is not label and other.chosen is not None]
            names = np.array(fixed + [other.boxes[chosen] for other, chosen in others]).reshape(-1, 4)
            lines = np.array([other.dots[chosen] for other, chosen in others]).reshape(-1, 2)
            label.place(names, lines, solid, discs, inside)
        if sweep and before == [label.chosen for label in labels]:
            break
    for label in labels:
        label.draw(axes)


def _overlap(boxes: Floats, others: Floats) -> NDArray[np.bool_]:
    """Which of *boxes* (rows) overlap which of *others* (columns)."""
    (left, low, right, high), (lefts, lows, rights, highs) = boxes.T[:, :, None], others.T[:, None, :]
    meet = left <= rights  # ten times as fast as along an axis of two
    for apart in (lefts <= right, low <= highs, lows <= high):
        meet &= apart
    return np.asarray(meet)


def _tiny(dots: Floats, half: float = 0.5) -> Floats:
    """Small boxes around *dots*."""
    return np.column_stack([dots - half, dots + half])


def _line_boxes(axes: Axes) -> Floats:
    """Small boxes along all drawn lines."""
    dots = [np.empty((0, 2))]
    for line in axes.lines:
        for start, end in pairwise(line.get_transform().transform(line.get_xydata())):
            shares = np.linspace(0, 1, max(2, int(hypot(*(end - start)) / 8)))
            dots.append(start + shares[:, None] * (end - start))
    return _tiny(np.concatenate(dots), 1.0)
