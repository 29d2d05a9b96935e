"""How a tuning went: the objective of each trial, and the best so far."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ksim.report.plots.style import BLUE, GREY, canvas, grid_of


def tuning_figure(title: str, note: str, label: str, trials: Sequence[tuple[int, float, bool]],
                  maximise: bool = False) -> Figure:
    """Each of *trials* is its number, its value, and whether it counts; the line is the best of those that do."""
    figure = canvas(8.0, 5.0, title, note)
    axes = grid_of(figure, 1, 1)[0]
    axes.set_xlabel("trial")
    axes.set_ylabel(label)
    for counts, color, name in ((False, GREY, "does not count"), (True, BLUE, "counts")):
        if some := [(number, value) for number, value, counted in trials if counted is counts]:
            axes.plot(*zip(*some, strict=True), "o", color=color, markersize=4, label=name)
    if counted := [(number, value) for number, value, counts in trials if counts]:
        numbers, values = zip(*counted, strict=True)
        best = (np.maximum if maximise else np.minimum).accumulate(values)
        axes.step(numbers, best, where="post", color=BLUE, label="best so far")
    if trials:
        axes.legend(loc="best")
    return figure
