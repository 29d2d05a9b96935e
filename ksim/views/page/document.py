"""One file of everything: sections, figures, data, styles and scripts, which may load nothing from anywhere."""

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attrs import define, field

from ksim import __version__
from ksim.foundation.errors import KsimError
from ksim.views.charts import Chart
from ksim.views.page.drawing import DARK, Figure, drawn
from ksim.views.tables import Markup, Table, element, html, together


def told(value: Any, shown: str, key: str, pool: str | None = None) -> Markup:
    """A number of summary.json as *shown*, with the key and the exact value beside it, so that both can be compared."""
    return element("data", shown, value=json.dumps(value), data_key=key, data_pool=pool)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", sortable: bool = False,
          **attributes: Any) -> Markup:
    """A table; columns whose name begins with ">" are numbers, those with "~" long texts."""
    return html(Table.of(*columns, rows=rows, title=caption), sortable, **attributes)


def note(*children: Any) -> Markup:
    """A remark in small print."""
    return element("p", *children, cls="note")


def missing(*children: Any) -> Markup:
    """What is not there, and why."""
    return element("p", *children, cls="missing")


def details(title: str, *children: Any, **attributes: Any) -> Markup:
    """What is shown on demand."""
    return element("details", element("summary", title), *children, **attributes)


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

    def figure(self, name: str, shown: Chart | Figure, caption: Any, columns: Sequence[str] = (),
               rows: Sequence[Sequence[Any]] = (), height: int = 320) -> Markup:
        """A figure with its caption, and a table that says the same, where there is one.

        *height* is that of a chart, in pixels; a figure that a script of the page fills has its own.
        """
        figure = drawn(shown, height) if isinstance(shown, Chart) else shown
        self.figures[name], height = figure, figure["layout"]["height"]
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
    return (files("ksim.views.page") / "assets" / name).read_text(encoding="utf-8")


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
