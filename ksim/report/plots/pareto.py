"""The Pareto front between objectives: all points, and the front labelled with the settings behind it."""

from collections.abc import Sequence

from attrs import evolve, frozen
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ksim.report.plots.labels import Named, name_marks
from ksim.report.plots.style import BLUE, GREY, canvas, grid_of

#: Radii in points, and the largest number of names; more would hide the marks.
_LARGE, _SMALL, _NAMED = 4.0, 2.8, 24
#: Values that differ by more than this factor are shown on a logarithmic scale, with ticks at these and their decades.
_WIDE, _TICKS = 20.0, (1.0, 2.0, 5.0)


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


def pareto_figure(title: str, note: str, scales: Sequence[Scale], marks: Sequence[ParetoMark]) -> Figure:
    """The first objective over each other one, in one panel each; a single objective over the number of the point.

    Between two objectives, the front is the edge of a shaded area, in which every point is dominated.
    """
    if len(scales) == 1:
        return _single(title, note, scales[0], marks)
    figure = canvas(1.2 + 6.8 * (len(scales) - 1), 5.6, title, note)
    grid = grid_of(figure, 1, len(scales) - 1)
    for place, axes in enumerate(grid, 1):
        axes.set_xlabel(scales[place].label)
        axes.set_ylabel(scales[0].label)
        _scale(axes, "x", [mark.values[place] for mark in marks])
        _scale(axes, "y", [mark.values[0] for mark in marks])
        _draw(axes, marks, place)
        if len(scales) == 2 and marks:
            _line(axes, scales, marks)
    if marks:
        grid[0].legend(loc="best")
    for place, axes in enumerate(grid, 1):
        name_marks(axes, _names(marks, place))
    return figure


def _single(title: str, note: str, scale: Scale, marks: Sequence[ParetoMark]) -> Figure:
    """One objective, the best point first."""
    figure = canvas(8.0, 5.6, title, note)
    axes = grid_of(figure, 1, 1)[0]
    numbered = [evolve(mark, values=(mark.values[0], float(place))) for place, mark in enumerate(marks, 1)]
    axes.set_xlabel("point")
    axes.set_ylabel(scale.label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _scale(axes, "y", [mark.values[0] for mark in marks])
    _draw(axes, numbered, 1)
    if marks:
        axes.legend(loc="best")
    name_marks(axes, _names(numbered, 1))
    return figure


def _scale(axes: Axes, which: str, values: Sequence[float]) -> None:
    """A logarithmic axis if values differ much, else matplotlib's choice; plain numbers in both."""
    axis = getattr(axes, f"{which}axis")
    if values and min(values) > 0 and max(values) > _WIDE * min(values):
        axes.set(**{f"{which}scale": "log"})
        axis.set_major_locator(LogLocator(subs=_TICKS, numticks=99))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _draw(axes: Axes, marks: Sequence[ParetoMark], place: int) -> None:
    for on_front, radius, colour, label in ((False, _SMALL, GREY, "beaten"), (True, _LARGE, BLUE, "on the front")):
        chosen = [mark.values for mark in marks if mark.on_front is on_front]
        if chosen:
            axes.scatter([values[place] for values in chosen], [values[0] for values in chosen], s=(2 * radius) ** 2,
                         color=colour, edgecolor="white", linewidth=0.8, zorder=3 + on_front, label=label)
    axes.margins(0.08)
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # keep these ends, whatever else is drawn


def _line(axes: Axes, scales: Sequence[Scale], marks: Sequence[ParetoMark]) -> None:
    """The area that the front dominates, and its edge: between two points, it takes the worse value of both."""
    corners = sorted({mark.values for mark in marks if mark.on_front}, key=lambda values: values[1],
                     reverse=scales[1].maximise)
    x = [values[1] for values in corners for _ in range(2)]
    y = [values[0] for values in corners for _ in range(2)]
    worst_x, worst_y = axes.get_xlim()[not scales[1].maximise], axes.get_ylim()[not scales[0].maximise]
    axes.plot([*x, worst_x], [worst_y, *y], color=BLUE, linewidth=1.4, alpha=0.6, zorder=2)
    axes.fill([*x, worst_x, worst_x], [worst_y, *y, worst_y], color=BLUE, linewidth=0, alpha=0.05, zorder=0)


def _names(marks: Sequence[ParetoMark], place: int) -> list[Named]:
    """The positions of marks, and the names of those on the front; marks at the same position share a name."""
    shared: dict[tuple[float, float], list[str]] = {}
    leading = [mark for mark in marks if mark.on_front]
    for mark in leading[:_NAMED]:
        shared.setdefault((mark.values[place], mark.values[0]), []).append(mark.name)
    named = [Named(x, y, _LARGE, "; ".join(names)) for (x, y), names in shared.items()]
    return named + [Named(mark.values[place], mark.values[0], _SMALL) for mark in marks if not mark.on_front]
