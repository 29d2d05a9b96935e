"""Objects of a JSON trace."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ksim.workload.lines import Lines
from ksim.workload.rows import listed

_KEY = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"\s*:')
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}]')
#: Characters in which keys are searched.
_BEGINNING = 1 << 16


@lru_cache(maxsize=1)  # every reader asks for the same line
def first_object(line: str) -> dict[str, Any]:
    """Return the object in *line*, empty if there is none; callers must not change it."""
    value = _parsed(line)
    return value if isinstance(value, dict) else {}


def keys(text: str) -> set[str]:
    """Return the keys of all objects, also inner ones, in the beginning of *text*, which may be cut anywhere."""
    return set(_KEY.findall(text[:_BEGINNING])) if text[:1] in ("[", "{") else set()


def objects(lines: Lines) -> Iterator[dict[str, Any]]:
    """Yield the object of each line; raise DataError for a line without one."""
    for line in lines:
        value = _parsed(line)
        if not isinstance(value, dict):
            raise lines.error("is not a JSON object; is the file cut short?")
        yield value


def named_members(lines: Lines, names: Sequence[str], needed: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of the keys *names* of each object, of lines or of a list; an absent or null value is "".

    ``usage.prompt`` also means the key ``prompt`` of the object ``usage``.  The first
    object must have all *needed* keys; later ones may lack some.  Raises DataError.
    """
    first = True
    for row in documents(lines) if lines.first().startswith("[") else objects(lines):
        if first:
            first = False
            if missing := [name for name in needed if name not in row and _inner(row, name) is None]:
                raise lines.error(f"has no {missing[0]!r}, only {listed(row)}; is it of another format? (--columns "
                                  f"says what each key is)")
        yield tuple("" if (value := row.get(name)) is None and (value := _inner(row, name)) is None else value
                    for name in names)


def documents(lines: Lines) -> Iterator[dict[str, Any]]:
    """Yield the outermost objects of JSON: in a list, in lines, or one after the other, over any number of lines.

    Only one object is held in memory at a time.  Raises DataError for anything that is not JSON.
    """
    parts: list[str] = []
    depth = 0
    for line in lines:
        begin = end = 0
        for token in _TOKEN.finditer(line):
            depth += {"{": 1, "}": -1}.get(token[0], 0)
            if token[0] == "{" and depth == 1:
                _check_between(line[end:token.start()], lines)
                begin = token.start()
            elif token[0] == "}" and depth <= 0:
                end = token.end()
                yield _document("\n".join((*parts, line[begin:end])), lines)
                parts, depth = [], 0
        if depth:
            parts.append(line[begin:])
        else:
            _check_between(line[end:], lines)
    if depth:
        raise lines.error("ends inside a JSON object; is the file cut short?")


def _check_between(text: str, lines: Lines) -> None:
    """Raise DataError if anything but the punctuation of a list is between two objects."""
    if text.strip(" \t,[]"):
        raise lines.error("is not a JSON object; is the file cut short?")


def _document(text: str, lines: Lines) -> dict[str, Any]:
    value = _parsed(text)
    if not isinstance(value, dict):
        raise lines.error("is not a JSON object; is the file cut short?")
    return value


def member(row: Mapping[str, Any], names: tuple[str, ...], lines: Lines, where: str = "") -> Any:
    """Return the value of the first of *names* that *row* has; raise DataError if it has none.

    *where* is the place of the row in its line, for messages.
    """
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise lines.error(f"{where} has no {' or '.join(names)}, only {listed(row)}".lstrip())


def _inner(row: Mapping[str, Any], name: str) -> Any:
    value: Any = row
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
