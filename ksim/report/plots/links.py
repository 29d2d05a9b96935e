"""The links of a fleet that are used most, over the run."""

import numpy as np
from matplotlib.figure import Figure

from ksim.report.plots.style import ORANGE, Margins, beside, canvas, grid_of, percent_axis
from ksim.report.plots.timeline import area, shown_span
from ksim.report.wording import UP, measure, number, percent
from ksim.results.history import History
from ksim.results.link_use import LinkUse, busiest

#: The most links that are shown, and points of a curve.
_MOST, _BINS = 8, 240


def shown_links(history: History) -> list[LinkUse]:
    """The links in the figure; none in a run whose links nobody used."""
    return busiest(history, _MOST)


def links_figure(history: History, title: str = "Links") -> Figure:
    """A panel for each of the busiest links: the share of its capacity in use over the run."""
    links = shown_links(history)
    end, note = shown_span(history)
    edges = np.linspace(0, end, _BINS + 1)
    figure = canvas(10, 1.6 + 1.25 * len(links), title,
                    f"the busiest of {len(history.links):,} links, each in its own direction; every point the mean over"
                    f" {number(float(edges[1]))} s{note}", fixed=True)
    grid = grid_of(figure, len(links), 1, share_x=True, margins=Margins(rows=0.5))
    for axes, link in zip(grid, links, strict=True):
        axes.set_title(link.name)
        beside(axes, f"of {measure(link.capacity, 'B/s')}: mean {percent(link.mean)}, at most"
                     f" {percent(link.use.peak, 1, UP)}")
        values = link.use.means(edges)
        area(axes, edges, values, ORANGE)
        percent_axis(axes, full=float(values.max(initial=0.0)) > 0.5)
    grid[-1].set_xlabel("seconds from the start of the run")
    grid[-1].set_xlim(0, edges[-1])
    return figure
