"""The files that benchmark clients write: parsed, with the place of each part for messages."""

import json
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from ksim.foundation.errors import DataError
from ksim.foundation.files import regular_file

#: Endings of files that may be results.
ENDINGS = (".json", ".jsonl", ".yaml", ".yml", ".txt")
#: The most bytes of a result: clients write the text of every answer.
_LONGEST = 2**30
_BLANK = re.compile(r"\s*")


@frozen
class Table:
    """A table of a file and its place in it, such as ``r.json:3`` or ``r.json: benchmarks[0]``."""

    where: str
    values: Mapping[str, Any]

    def error(self, problem: str) -> DataError:
        """An error about this table."""
        return DataError(self.where, problem)

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def number(self, key: str, least: float | None = 0.0) -> float:
        """The number at *key*, at least *least*; raises DataError for anything else."""
        return _number(self, key, self.values.get(key), least)

    def maybe(self, key: str, least: float | None = 0.0) -> float | None:
        """The same, or None where there is no value."""
        return self.number(key, least) if key in self else None

    def count(self, key: str) -> int:
        """The whole number at *key*."""
        number = self.number(key)
        if not number.is_integer():
            raise self.error(f"{key} is {number:g}; expected a whole number")
        return int(number)

    def numbers(self, key: str) -> list[float]:
        """The list of numbers at *key*."""
        return [_number(self, f"{key}[{place}]", value, 0.0) for place, value in enumerate(self.items(key))]

    def some_numbers(self, key: str) -> list[float | None]:
        """The list of numbers at *key*, of any sign, in which None may be."""
        return [None if value is None else _number(self, f"{key}[{place}]", value, None)
                for place, value in enumerate(self.items(key))]

    def items(self, key: str) -> list[Any]:
        """The list at *key*; raises DataError for anything else."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.error(f"{key} is {_shown(value)}; expected a list")
        return value

    def tables(self, key: str) -> "list[Table]":
        """The tables in the list at *key*."""
        return [self._table(f"{key}[{place}]", value) for place, value in enumerate(self.items(key))]

    def inner(self, key: str) -> "Table":
        """The table at *key*; raises DataError where there is none."""
        return self._table(key, self.values.get(key))

    def branch(self, *keys: str) -> "Table":
        """The table behind *keys*; an empty one where there is none."""
        table = self
        for key in keys:
            table = table.inner(key) if isinstance(table.get(key), Mapping) else Table(f"{table.where}: {key}", {})
        return table

    def _table(self, key: str, value: Any) -> "Table":
        if not isinstance(value, Mapping):
            raise self.error(f"{key} is {_shown(value)}; expected a table")
        return Table(f"{self.where}.{key}" if ": " in self.where else f"{self.where}: {key}", value)


def _number(table: Table, key: str, value: Any, least: float | None) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise table.error(f"{key} is {_shown(value)}; expected a number") from None
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30
    if not fits or not isfinite(value) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least:g}"
        raise table.error(f"{key} is {_shown(value)}; expected a number{bound}")
    return float(value)


def _shown(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."


def tables_of(path: Path) -> list[Table]:
    """The tables in the file at *path*: a JSON document, several one after the other or a line each, or YAML.

    Raises DataError, with the line, for a file that is neither.
    """
    try:
        text = regular_file(path, _LONGEST).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise DataError(str(path), "is not text; expected JSON or YAML, as a benchmark client writes it") from None
    if not text.strip():
        raise DataError(str(path), "is empty; did the benchmark end before it wrote its result?")
    if (kind := _other_kind(text)) is not None:
        raise DataError(str(path), f"is {kind}; expected the JSON or YAML that a benchmark client writes, such as"
                                   f" benchmarks.json (see `ksim list recordings`)")
    documents = list(_yaml(path, text) if path.suffix.lower() in (".yaml", ".yml") else _json(path, text))
    return [table for where, value in documents for table in _tables(where, value)]


def _other_kind(text: str) -> str | None:
    """What a *text* is that is neither JSON nor YAML, by its beginning: HTML, or a table of rows; None otherwise."""
    first, _, rest = text.lstrip().partition("\n")
    if re.match(r"<(!doctype|html|\?xml|head|body|table)\b", first, re.IGNORECASE):
        return "HTML" if "xml" not in first[:6].lower() else "XML"
    for sign, name in ((",", "CSV"), ("\t", "a table of tabs")):
        columns = first.count(sign)
        if columns and not re.search(r"[{}\[\]:]", first) and rest.partition("\n")[0].count(sign) >= columns:
            return name
    return None


def _tables(where: str, value: Any) -> Iterator[Table]:
    members = value if isinstance(value, list) else [value]
    for place, member in enumerate(members):
        if not isinstance(member, Mapping):
            raise DataError(where, f"holds {_shown(member)}; expected a table, as a benchmark client writes it")
        yield Table(f"{where}: [{place}]" if isinstance(value, list) else where, member)


def _json(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    decoder, place = json.JSONDecoder(), 0
    line, counted = 1, 0
    several = False
    while (place := _BLANK.match(text, place).end()) < len(text):  # type: ignore[union-attr]
        line, counted = line + text.count("\n", counted, place), place
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise _not_json(path, text, error) from None
        several = several or bool(text[end:].strip())
        yield (f"{path}:{line}" if several else str(path)), value
        place = end


def _not_json(path: Path, text: str, error: Exception) -> DataError:
    if not isinstance(error, json.JSONDecodeError):
        return DataError(str(path), "is not JSON: its values are nested too deeply")
    last = error.lineno >= text.rstrip().count("\n") + 1 and error.pos >= len(text.rstrip()) - 80
    cut = "; is the file cut short?" if last or "Unterminated" in error.msg else ""
    return DataError(f"{path}:{error.lineno}", f"is not JSON at column {error.colno} ({error.msg}){cut}")


def _yaml(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from ((str(path), value) for value in yaml.load_all(text, loader))
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise DataError(where, f"is not YAML ({getattr(error, 'problem', None) or type(error).__name__}); is the file"
                               f" cut short?") from None
