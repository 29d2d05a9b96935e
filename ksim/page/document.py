"""One file of everything: sections, figures, data, styles and scripts, which may load nothing from anywhere.

HTML, written so that what comes from files is always escaped.

Figures as plotly's JSON: one style, and no text that could be markup.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field

from ksim import __version__
from ksim.foundation.errors import KsimError
from ksim.results.steps import Floats

#: Elements without an end.
_VOID = {"input", "meta", "br", "col"}
#: After these, a line may break in a name; the dots of numbers are not among them.
_BREAKS = re.compile(r"_|(?<=[A-Za-z])\.(?=[A-Za-z])")
#: The classes of columns by the first letter of their names.
_STYLES = {">": "number", "~": "long"}


class Markup(str):
    """Text that is HTML already; every other text is escaped when it becomes part of an element."""

    __slots__ = ()


def element(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element with *children*, texts or markup, of which None says nothing.

    Attributes of value None or False are left out, True ones have no value, and 0 is a value as any other; `cls` is the
    class, and underscores read as hyphens.
    """
    head = "".join(_attribute(key, value) for key, value in attributes.items()
                   if value is not None and value is not False)
    if name in _VOID:
        return Markup(f"<{name}{head}>")
    return Markup(f"<{name}{head}>{together(children)}</{name}>")


def together(children: Iterable[Any]) -> Markup:
    """Markup of *children*, one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else escape(str(child))
                          for child in children if child is not None))


def _attribute(key: str, value: Any) -> str:
    name = "class" if key == "cls" else key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def told(value: Any, shown: str, key: str, pool: str | None = None) -> Markup:
    """A number of summary.json as *shown*, with the key and the exact value beside it, so that both can be compared."""
    return element("data", shown, value=json.dumps(value), data_key=key, data_pool=pool)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", sortable: bool = False,
          **attributes: Any) -> Markup:
    """A table; columns whose name begins with ">" are numbers, those with "~" long texts.

    The first cell of each row is its heading.
    A cell may be a pair of what is shown and the value by which it is sorted.
    """
    styles = [_STYLES.get(column[:1]) for column in columns]
    titles = [column[1:] if style else column for column, style in zip(columns, styles, strict=True)]
    head = (element("th", _sorter(title) if sortable else breakable(title), scope="col", cls=style)
            for title, style in zip(titles, styles, strict=True))
    body = [element("tr", *map(_cell, range(len(styles)), row, styles)) for row in rows]
    made = element("table", element("caption", element("span", caption)) if caption else None,
                   element("thead", element("tr", *head)), element("tbody", *body),
                   cls="sortable" if sortable else None, **attributes)
    return element("div", made, cls="scroll", tabindex="0", role="region", aria_label=caption or "table")


def breakable(name: str) -> Markup:
    """*name*, which a line may break after underscores and dots, and nowhere within a word."""
    return Markup(_BREAKS.sub(r"\g<0><wbr>", escape(name)))


def _sorter(name: str) -> Markup:
    return element("button", breakable(name), type="button", cls="sorter")


def _cell(place: int, cell: Any, style: str | None) -> Markup:
    shown, value = cell if isinstance(cell, tuple) else (cell, None)
    if isinstance(shown, str) and not isinstance(shown, Markup):
        shown = breakable(shown)
    attributes = {"cls": style, "data_value": value}
    return element("td" if place else "th", shown, **attributes, **({} if place else {"scope": "row"}))


def note(*children: Any) -> Markup:
    """A remark in small print."""
    return element("p", *children, cls="note")


def missing(*children: Any) -> Markup:
    """What is not there, and why."""
    return element("p", *children, cls="missing")


def details(title: str, *children: Any, **attributes: Any) -> Markup:
    """What is shown on demand."""
    return element("details", element("summary", title), *children, **attributes)


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


#: Zlib's level for the library and the data: higher ones save next to nothing.
_LEVEL = 6
#: The scripts of every page, in the order in which they run; a page of a study adds its own.
SCRIPTS = ("page.js", "figures.js", "tables.js")


@define
class Document:
    """A page in the making: sections in order, figures by name, and data for its scripts."""

    title: str
    eyebrow: str
    lead: list[Markup] = field(factory=list)
    sections: list[tuple[str, str, Markup]] = field(factory=list)
    figures: dict[str, Figure] = field(factory=dict)
    data: dict[str, Any] = field(factory=dict)
    scripts: tuple[str, ...] = ()

    def section(self, name: str, title: str, *content: Any) -> None:
        """Add a section, which the contents list links to."""
        body = element("section", element("h2", title, id=f"{name}-title"), *content, id=name,
                       aria_labelledby=f"{name}-title")
        self.sections.append((name, title, body))

    def figure(self, name: str, drawn: Figure, caption: Any, columns: Sequence[str] = (),
               rows: Sequence[Sequence[Any]] = ()) -> Markup:
        """A figure with its caption, and a table that says the same, where there is one."""
        self.figures[name] = drawn
        height = drawn["layout"]["height"]
        plot = element("div", cls="plot", id=f"figure-{name}", data_figure=name, role="group",
                       aria_labelledby=f"caption-{name}", style=f"min-height:{height}px")
        same = element("details", element("summary", "The same as a table"), table(columns, rows)) if columns else None
        return element("figure", plot, element("figcaption", caption, id=f"caption-{name}"), same)

    def html(self) -> str:
        """The whole page."""
        script = "".join(asset(name) for name in (*SCRIPTS, *self.scripts))
        head = element(
            "head", element("meta", charset="utf-8"), _policy(script, plotly() if self.figures else ""),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"), element("title", f"{self.title} - ksim"),
            element("style", Markup(asset("page.css"))))
        body = element(
            "body", element("a", "Skip to the answer", href="#answer", cls="skip"), self._header(),
            element("div", self._contents(), element("main", *(body for _, _, body in self.sections), id="main"),
                    cls="columns"),
            _footer(), self._packed(), element("script", Markup(script)))
        return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"

    def _header(self) -> Markup:
        switch = element("button", "Theme", type="button", id="theme", aria_label="Switch between light and dark")
        return element("header", element("div", element("p", self.eyebrow, cls="eyebrow"), switch, cls="bar"),
                       element("h1", self.title), element("div", *self.lead, id="answer", tabindex="-1"),
                       element("noscript", element("p", "Figures need JavaScript; the tables below them do not.",
                                                   cls="missing")))

    def _contents(self) -> Markup:
        entries = (element("li", element("a", title, href=f"#{name}")) for name, title, _ in self.sections)
        return element("nav", element("ul", *entries), aria_label="Sections")

    def _packed(self) -> Markup:
        """The library and the data as text that does not run."""
        content = {"figures": self.figures, "dark": DARK, **self.data}
        blocks = [element("script", Markup(packed(dense(content).encode())), type="text/plain", id="data")]
        if self.figures:
            blocks.append(element("script", Markup(packed(plotly().encode())), type="text/plain", id="library"))
        return together(blocks)


def dense(content: Any) -> str:
    """JSON without spaces."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def packed(content: bytes) -> str:
    """*content* gzipped, in base64; the same content gives the same text."""
    return base64.b64encode(gzip.compress(content, _LEVEL, mtime=0)).decode()


def asset(name: str) -> str:
    """A stylesheet or script that ships with ksim."""
    return (files("ksim.page") / "assets" / name).read_text(encoding="utf-8")


@cache
def plotly() -> str:
    """The library that draws the figures, without Python's part of it, which takes a second to load."""
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise KsimError("ksim report needs plotly: pip install plotly")
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _policy(*scripts: str) -> Markup:
    """What the page may do: run these *scripts*, and load nothing."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts if script)
    rules = ("default-src 'none'", f"script-src {hashes}", "style-src 'unsafe-inline'", "img-src data: blob:",
             "base-uri 'none'", "form-action 'none'")
    return element("meta", http_equiv="Content-Security-Policy", content="; ".join(rules))


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _footer() -> Markup:
    return element("footer", element("p", f"Written by ksim {__version__}. This file needs no network: it holds its"
                                          " data, and Plotly.js to draw them."))
