"""Time per output token over the batch, with speculation and without."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ksim.report.plots.style import BLUE, DASHES, GREY, ORANGE, canvas, grid_of, linear_ticks

__all__ = ["speculation_figure"]


def speculation_figure(title: str, note: str, said: str, batches: Sequence[int], plain: Sequence[float],
                       speculative: Sequence[float], pays: int) -> Figure:
    """TPOT for each of *batches*; a line where speculation stops to pay, if it does among them, as is *said* above."""
    figure = canvas(7.2, 4.4, title, note)
    (axes,) = grid_of(figure, 1, 1)
    axes.plot(batches, [1e3 * seconds for seconds in plain], color=GREY, marker="o", markersize=4, label="plain")
    axes.plot(batches, [1e3 * seconds for seconds in speculative], color=BLUE, marker="o", markersize=4,
              label="with speculation")
    if 0 < pays < batches[-1]:
        axes.axvline(pays, color=ORANGE, linestyle=DASHES, label=f"pays up to {pays}")
    linear_ticks(axes)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.set_title(said)
    axes.set_xlabel("sequences that decode")
    axes.set_ylabel("time per output token, ms")
    axes.legend(loc="upper left")
    return figure
