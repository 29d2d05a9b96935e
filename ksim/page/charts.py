"""Figures as plotly's JSON: one style, and no text that could be markup."""

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np

from ksim.results.arrays import Floats

#: Colours that people with any colour vision tell apart, on white; the page swaps them for their twins in the dark.
BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, GOLD, PINK = (
    "#2f6db5", "#d9822b", "#2e8b68", "#7a5fb5", "#c8453c", "#2b98a3", "#b8960c", "#b9609a")
GREY, INK, FAINT, LINE, PAPER = "#9aa3ad", "#1f2630", "#5d6875", "#e3e7ec", "#ffffff"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, GOLD, PINK)
DARK = {BLUE: "#6ea8ee", ORANGE: "#f0a04b", GREEN: "#5cc39a", PURPLE: "#ad94ea", RED: "#f27d74", TEAL: "#5ccbd6",
        GOLD: "#dcbd45", PINK: "#e594c8", GREY: "#77818d", INK: "#e8ecf1", FAINT: "#a3adba", LINE: "#2c343f",
        PAPER: "#171c23",
        # Phases of other requests and the like, which are paler than what they belong to: there, darker.
        "#8db4e2": "#3f6d9e", "#9ecfb8": "#3b7a62", "#6b7480": "#8d97a3", "#c9a8a1": "#8f7069", "#8c2f39": "#c76b76",
        "#b9c0c8": "#59636e"}
#: The fields that every figure of the page is drawn in.
Figure = dict[str, Any]


def safe(text: object) -> str:
    """*text* as plotly shows it letter by letter: it takes a few tags and entities for markup."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def figure(traces: Sequence[dict[str, Any]], height: int = 320, **layout: Any) -> Figure:
    """A figure of *traces* in the page's style; its title is the caption beside it."""
    base: dict[str, Any] = {
        "height": height, "paper_bgcolor": PAPER, "plot_bgcolor": PAPER, "margin": {"l": 62, "r": 16, "t": 14, "b": 48},
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", "size": 12.5, "color": FAINT},
        "hovermode": "closest", "hoverlabel": {"font": {"size": 12.5}, "bgcolor": PAPER, "bordercolor": LINE},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom",
                   "font": {"color": INK}, "traceorder": "normal"},
        "dragmode": "zoom", "bargap": 0.28,
        "showlegend": sum(trace.get("showlegend") is not False for trace in traces) > 1,
    }
    legend = {**base["legend"], **layout.pop("legend", {})}
    return {"data": list(traces), "layout": {**base, **layout, "legend": legend}}


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis with its *title*, which names the unit."""
    return {"title": {"text": title, "standoff": 8, "font": {"color": FAINT}}, "gridcolor": LINE, "zerolinecolor": LINE,
            "linecolor": GREY, "automargin": True, **more}


def line(x: Any, y: Any, name: str, colour: str, hover: str = "", **more: Any) -> dict[str, Any]:
    """A curve through points."""
    style = {"color": colour, "width": 2, **more.pop("line", {})}
    return {"type": "scatter", "mode": "lines", "x": numbers(x), "y": numbers(y), "name": safe(name), "line": style,
            "hovertemplate": hover or None, **more}


def area(x: Any, y: Any, name: str, colour: str, hover: str = "", **more: Any) -> dict[str, Any]:
    """A curve over a pale area."""
    return line(x, y, name, colour, hover, fill="tozeroy", fillcolor=pale(colour), **more)


def pale(colour: str, share: float = 0.14) -> str:
    """*colour*, nearly transparent: it suits a light and a dark page."""
    red, green, blue = (int(colour[place: place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


def rule(x: float, colour: str = RED, dash: str = "dash") -> dict[str, Any]:
    """A vertical line across the figure."""
    return {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1,
            "line": {"color": colour, "width": 1.5, "dash": dash}}


def label(text: str, x: float, y: float, **more: Any) -> dict[str, Any]:
    """A text in the figure."""
    return {"text": safe(text), "x": x, "y": y, "showarrow": False, "font": {"size": 12, "color": FAINT}, **more}


def numbers(values: Any, digits: int = 5) -> list[Any]:
    """*values* with so many significant digits, for which no screen has pixels; nan is null."""
    if not isinstance(values, np.ndarray):
        values = list(values)
        if any(isinstance(value, str) for value in values):
            return [safe(value) for value in values]
        values = np.array([np.nan if value is None else value for value in values], dtype=float)
    if values.dtype.kind in "iu":
        return list(values.tolist())
    return [None if isnan(value) else float(f"{value:.{digits}g}") for value in values.astype(float).tolist()]


def step_of(values: Floats) -> tuple[Floats, Floats]:
    """The cumulative distribution of *values*: at most 400 points, which no screen tells from all of them."""
    ordered = np.sort(values)
    if len(ordered) <= 400:
        return ordered, np.arange(1, len(ordered) + 1) / len(ordered)
    # More points where few values are, in the tails.
    shares = np.unique(np.concatenate([np.linspace(0, 1, 301), 1 - np.geomspace(0.1, 1 / len(ordered), 99)]))
    return np.quantile(ordered, shares), shares
