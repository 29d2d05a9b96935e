"""Charts as plotly's JSON: one style, and no text that could be markup."""

from collections.abc import Iterator, Mapping, Sequence
from functools import singledispatch
from math import isnan, log10
from typing import Any

import numpy as np

from ksim.views.charts import (
    BLUE,
    FAINT,
    GOLD,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PAPER,
    PINK,
    PURPLE,
    RED,
    TEAL,
    Axis,
    Bars,
    Chart,
    Dots,
    Mark,
    Panel,
    Polyline,
    RuleLine,
    Span,
    Text,
)

#: The twin of each colour on a dark page.
DARK = {BLUE: "#6ea8ee", ORANGE: "#f0a04b", GREEN: "#5cc39a", PURPLE: "#ad94ea", RED: "#f27d74", TEAL: "#5ccbd6",
        GOLD: "#dcbd45", PINK: "#e594c8", GREY: "#77818d", INK: "#e8ecf1", FAINT: "#a3adba", PALE: "#2c343f",
        PAPER: "#171c23",
        # Phases of other requests and the like, which are paler than what they belong to: there, darker.
        "#8db4e2": "#3f6d9e", "#9ecfb8": "#3b7a62", "#6b7480": "#8d97a3", "#c9a8a1": "#8f7069", "#8c2f39": "#c76b76",
        "#b9c0c8": "#59636e"}
#: What plotly draws: its traces and its layout.
Figure = dict[str, Any]
#: Pixels of a point of paper.
_POINT = 1.35


def safe(text: object) -> str:
    """*text* as plotly shows it letter by letter: it takes a few tags and entities for markup."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "<br>")


def figure(traces: Sequence[dict[str, Any]], height: int = 320, **layout: Any) -> Figure:
    """A figure of *traces* in the page's style; its title is the caption beside it."""
    base: dict[str, Any] = {
        "height": height, "paper_bgcolor": PAPER, "plot_bgcolor": PAPER, "margin": {"l": 62, "r": 16, "t": 14, "b": 48},
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", "size": 12.5, "color": FAINT},
        "hovermode": "closest", "hoverlabel": {"font": {"size": 12.5}, "bgcolor": PAPER, "bordercolor": PALE},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom",
                   "font": {"color": INK}, "traceorder": "normal"},
        "dragmode": "zoom", "showlegend": True,
    }
    return {"data": list(traces), "layout": {**base, **layout}}


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis with its *title*, which names the unit."""
    return {"title": {"text": safe(title), "standoff": 8, "font": {"color": FAINT}}, "gridcolor": PALE,
            "zerolinecolor": PALE, "linecolor": GREY, "automargin": True, **more}


def dots(name: str, colour: str, size: float, **more: Any) -> dict[str, Any]:
    """Marks that a script of the page fills in, and a ring around the chosen one where *colour* is none."""
    marker = {"color": colour, "size": size, **more.pop("marker", {})} if colour else {
        "color": "rgba(0,0,0,0)", "size": size, "line": {"color": RED, "width": 3}}
    ring = {} if colour else {"showlegend": False, "hoverinfo": "skip"}
    return {"type": "scatter", "mode": "markers", "x": [], "y": [], "name": name, "marker": marker, **ring, **more}


def drawn(chart: Chart, height: int) -> Figure:
    """*chart* so many pixels high: its panels one below the other, each with the names of its marks above it."""
    layout: dict[str, Any] = {"shapes": [], "annotations": []}
    traces: list[dict[str, Any]] = []
    several, named = len(chart.panels) > 1, set[str]()
    # Above each of several panels is room for its title, and between two for the numbers of an axis, too.
    above, below = (22 / height, (14 if chart.shared else 44) / height) if several else (0.0, 0.0)
    room = 1 - above - (len(chart.panels) - 1) * (above + below)
    top, whole = 1 - above, sum(panel.tall for panel in chart.panels)
    for index, panel in enumerate(chart.panels):
        own, last = "" if index == 0 else str(index + 1), index == len(chart.panels) - 1
        x, y, low = ("x" if chart.shared else f"x{own}"), f"y{own}", max(0.0, top - room * panel.tall / whole)
        if not chart.shared or last:
            layout[f"xaxis{x[1:]}"] = _axis(panel.x, anchor=y, matches=None)
        layout[f"yaxis{own}"] = _axis(panel.y, anchor=x, domain=[low, top])
        mine = [{**trace, "xaxis": x, "yaxis": y} for mark in panel.marks for trace in _traces(mark)]
        legend = "legend" if chart.legend else f"legend{own}"
        for trace in mine:
            first = bool(trace["name"]) and bool(panel.legend or chart.legend) and trace["name"] not in named
            trace.update(legend=legend, showlegend=trace.get("showlegend", True) is not False and first)
            named |= {trace["name"]} if chart.legend else set()
        traces += mine
        layout["shapes"] += [shape for mark in panel.marks for shape in _shapes(mark, x, y)]
        layout["annotations"] += [text for mark in panel.marks if isinstance(mark, Text)
                                  for text in [_text(mark, panel, x, y)]]
        layout.setdefault(legend, _legend(top, several and not chart.legend, panel.legend_title or chart.legend_title))
        if several:
            layout["annotations"] += _titles(panel, y)
        top = low - above - below
    return figure(traces, height, barmode="overlay", **layout)


def _legend(top: float, right: bool, title: str) -> dict[str, Any]:
    side = {"x": 1, "xanchor": "right", "y": top} if right else {"x": 0, "xanchor": "left", "y": 1.02}
    return {"title": {"text": safe(title)}, "orientation": "h", **side, "yanchor": "bottom", "font": {"color": INK},
            "traceorder": "normal"}


def _titles(panel: Panel, y: str) -> Iterator[dict[str, Any]]:
    """The title of a panel among several, and what stands beside it."""
    for text, x, colour in ((panel.title, 0, INK), ("" if panel.legend else panel.beside, 1, FAINT)):
        if text:
            yield {"text": safe(text), "x": x, "xref": "paper", "xanchor": "right" if x else "left", "y": 1,
                   "yref": f"{y} domain", "yanchor": "bottom", "showarrow": False,
                   "font": {"size": 12.5, "color": colour}}


def _axis(shown: Axis, **places: Any) -> dict[str, Any]:
    more: dict[str, Any] = {key: value for key, value in places.items() if value is not None}
    log = shown.scale.startswith("log")
    if log:
        more["type"] = "log"
    if shown.low is not None and shown.high is not None:
        ends = [log10(shown.low), log10(shown.high)] if log else [shown.low, shown.high]
        more["range"] = [float(end) for end in (ends[::-1] if shown.reverse else ends)]
    elif shown.low == 0:
        more["rangemode"] = "tozero"
    if shown.ticks is not None and shown.scale != "symlog":
        more |= {"tickvals": [float(tick) for tick in shown.ticks], "ticktext": [*map(safe, shown.ticks.values())],
                 "tickangle": 0}
    elif shown.percent:
        more["tickformat"] = ",.3~p"
    if shown.most < 8:
        more["nticks"] = shown.most
    return axis(shown.title, showgrid=shown.grid, zeroline=not shown.reverse, **more)


@singledispatch
def _traces(mark: Mark) -> Iterator[dict[str, Any]]:
    """The traces of *mark*; rules, spans and texts are none."""
    return iter(())


@_traces.register
def _lines(mark: Polyline) -> Iterator[dict[str, Any]]:
    shared = {"type": "scatter", "name": safe(mark.name), "legendgroup": safe(mark.name) or None,
              "visible": "legendonly" if mark.waits else True}
    if len(mark.low):
        # Up along the upper ends, and back along the lower ones, where they are known.
        x, low, high = (np.asarray(each, float)[~np.isnan(np.asarray(mark.low, float))]
                        for each in (mark.x, mark.low, mark.high))
        yield {**shared, "mode": "lines", "x": numbers(np.concatenate([x, x[::-1]])), "fill": "toself",
               "y": numbers(np.concatenate([high, low[::-1]])), "fillcolor": pale(mark.colour, mark.area or 0.15),
               "line": {"width": 0, "color": mark.colour}, "hoverinfo": "skip", "showlegend": False}
    line = {"color": mark.colour, "width": 1.2 * mark.width, "dash": mark.dash or "solid",
            "shape": "hv" if mark.steps else "linear"}
    marker = {"symbol": ["circle-open" if hollow else "circle" for hollow in mark.hollow] or "circle",
              "size": _POINT * mark.dots}
    area = {"fill": "tozeroy", "fillcolor": pale(mark.colour, mark.area)} if mark.area and not len(mark.low) else {}
    yield {**shared, "mode": "lines+markers" if mark.dots else "lines", "x": numbers(mark.x), "y": numbers(mark.y),
           "line": line, **({"marker": marker} if mark.dots else {}), **area, **_hover(mark.hover, mark.name)}


@_traces.register
def _marks(mark: Dots) -> Iterator[dict[str, Any]]:
    sizes = [_POINT * size for size in mark.size] if isinstance(mark.size, Sequence) else _POINT * mark.size
    rim = {"line": {"width": 1, "color": mark.colour}} if mark.opacity < 1 else {}
    trace: dict[str, Any] = {
        "type": "scatter", "mode": "markers+text" if any(mark.texts) else "markers", "name": safe(mark.name),
        "x": numbers(mark.x), "y": numbers(mark.y), "marker": {
            "size": sizes, "color": mark.colour, "opacity": mark.opacity, "symbol": "x" if mark.cross else "circle",
            **rim},
        "hovertext": [*map(safe, mark.hover)], "hovertemplate": "%{hovertext}<extra></extra>"}
    if any(mark.texts):
        trace |= {"text": [*map(safe, mark.texts)], "textposition": "bottom right" if mark.below else "middle right",
                  "textfont": {"color": INK, "size": 12}}
    if len(mark.low) and not all(map(isnan, mark.low)):
        values = np.asarray(mark.x if mark.across else mark.y, float)
        trace["error_x" if mark.across else "error_y"] = {
            "type": "data", "symmetric": False, "color": mark.colour, "thickness": 1.5,
            "array": numbers(np.asarray(mark.high, float) - values),
            "arrayminus": numbers(values - np.asarray(mark.low, float))}
    yield trace


@_traces.register
def _bars(mark: Bars) -> Iterator[dict[str, Any]]:
    along, other = ("x", "y") if mark.across else ("y", "x")
    if not mark.name and not np.any(mark.lengths):
        return  # only its texts say something, which the table beside the figure says, too
    yield {"type": "bar", "orientation": "h" if mark.across else "v", "name": safe(mark.name),
           "legendgroup": safe(mark.name) or None, along: numbers(mark.lengths), other: numbers(mark.at),
           "base": numbers(mark.starts), "width": mark.thickness, "customdata": numbers(mark.lengths),
           "marker": {"color": mark.colour if isinstance(mark.colour, str) else [*mark.colour]},
           **_hover(mark.hover, "")}


def _hover(template: str, name: str) -> dict[str, Any]:
    if not template:
        return {"hoverinfo": "skip"}
    return {"hovertemplate": f"{template}<extra>{'%{fullData.name}' if name else ''}</extra>"}


def _shapes(mark: Mark, x: str, y: str) -> Iterator[dict[str, Any]]:
    """Lines and areas across a panel."""
    if not isinstance(mark, RuleLine | Span):
        return
    low, high = (mark.at, mark.at) if isinstance(mark, RuleLine) else (mark.low, mark.high)
    ends = {"x0": 0, "x1": 1, "xref": f"{x} domain", "y0": low, "y1": high, "yref": y} if mark.across else {
        "y0": 0, "y1": 1, "yref": f"{y} domain", "x0": low, "x1": high, "xref": x}
    if isinstance(mark, RuleLine):
        yield {"type": "line", **ends, "line": {"color": mark.colour, "width": 1.2 * mark.width,
                                                "dash": mark.dash or "solid"}}
    else:
        yield {"type": "rect", **ends, "layer": "below", "fillcolor": pale(mark.colour, mark.opacity),
               "line": {"width": 0}}


def _text(mark: Text, panel: Panel, x: str, y: str) -> dict[str, Any]:
    """A text in the figure; plotly wants logarithms on such axes."""
    def place(value: float, shown: Axis) -> float:
        return log10(value) if shown.scale.startswith("log") else value

    inside = mark.of == "panel"
    where = {"x": mark.x if inside else place(mark.x, panel.x), "xref": f"{x} domain" if inside else x,
             "y": place(mark.y, panel.y) if mark.of == "axes" else mark.y,
             "yref": y if mark.of == "axes" else f"{y} domain"}
    box: Mapping[str, Any] = {"bgcolor": pale(PAPER, 0.8)} if mark.boxed else {}
    return {"text": safe(mark.text), "showarrow": False, "xanchor": mark.align, "yanchor": mark.valign.replace(
        "center", "middle"), "xshift": _POINT * mark.shift[0], "yshift": _POINT * mark.shift[1], **where, **box,
        "font": {"size": 12, "color": mark.colour}, "textangle": -90 if mark.upright else 0}


def pale(colour: str, share: float = 0.14) -> str:
    """*colour*, nearly transparent: it suits a light and a dark page."""
    red, green, blue = (int(colour[index: index + 2], 16) for index in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


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
