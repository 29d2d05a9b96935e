"""HTML, written so that what comes from files is always escaped: the elements of pages and notebooks."""

import re
from collections.abc import Iterable
from html import escape
from typing import Any

#: Elements without an end.
_VOID = {"input", "meta", "br", "col"}
#: After these, a line may break in a name; the dots of numbers are not among them.
_BREAKS = re.compile(r"_|(?<=[A-Za-z])\.(?=[A-Za-z])")


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


def breakable(name: str) -> Markup:
    """*name*, which a line may break after underscores and dots, and nowhere within a word."""
    return Markup(_BREAKS.sub(r"\g<0><wbr>", escape(name)))

