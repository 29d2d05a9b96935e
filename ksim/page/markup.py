"""HTML, written so that what comes from files is always escaped."""

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

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
