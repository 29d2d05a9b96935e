"""Named columns of a CSV trace, and the fields that they can hold."""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from operator import itemgetter
from typing import Any

import attrs

from ksim.workload.fields import listed, shown
from ksim.workload.lines import Lines

#: The fields of a request that a column can hold; prompt and output are required.
FIELDS = ("arrival", "prompt", "output", "priority", "session", "delay", "tenant", "adapter", "hash_ids", "images",
          "acceptance", "max_tokens", "n", "prompt_logprobs", "beam_width", "outputs",
          "output_hash_ids", "aborted")


def check_fields(columns: Mapping[str, str]) -> None:
    """Raise ValueError for a key of *columns* that is not in `FIELDS`, and for a value that is not a name."""
    for name, source in columns.items():
        if name not in FIELDS:
            close = get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(f"there is no field {shown(name)}; {hint}expected {', '.join(FIELDS)}")
        if not isinstance(source, str) or not source:
            raise ValueError(f"{name} is {shown(source)}; expected the name of a column")


def known_fields(_: Any, attribute: "attrs.Attribute[Any]", columns: Mapping[str, str]) -> None:
    """Check a field of an attrs class as `check_fields` does."""
    try:
        check_fields(columns)
    except ValueError as error:
        raise ValueError(f"{attribute.name}: {error}") from None


def delimiter(line: str) -> str:
    """Return what separates the columns of a file with the header *line*: of comma, semicolon and tab the commonest."""
    return max(",;\t", key=lambda mark: len(_split(line, mark)))


def header(line: str) -> list[str]:
    """Return the names in *line*, taken as the header of a CSV file; none if it is not CSV."""
    return _split(line, delimiter(line))


def _split(line: str, mark: str) -> list[str]:
    try:
        return [name.strip() for name in next(csv.reader([line], strict=True, delimiter=mark))]
    except csv.Error:
        return []


def columns(lines: Lines, needed: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the *needed* and the *optional* columns of each row; a column that is absent is empty.

    Raises DataError for a missing column, for a column that occurs twice, and for a
    row that does not match the header.
    """
    return named_columns(lines, (*needed, *optional), needed)


def named_columns(lines: Lines, names: Sequence[str], needed: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the columns *names* of each row as `columns` does; the *needed* ones are among them."""
    first = lines.first()
    present, mark = header(first), delimiter(first)
    lines.decimal_comma = mark != ","
    _check_header(present, names, needed, lines)
    pick = itemgetter(*(present.index(name) if name in present else len(present) for name in names))
    for row in _rows(lines, len(present), mark):
        row.append("")
        yield pick(row)


def _check_header(present: Sequence[str], names: Sequence[str], needed: Sequence[str], lines: Lines) -> None:
    if missing := [name for name in needed if name not in present]:
        commas = ("columns are separated by commas, semicolons or tabs" if len(present) < 2 else
              "is it of another format?")
        raise lines.error(f"has no column {missing[0]!r}, only {listed(present) or 'an unreadable header'}; {commas} "
                          f"(--columns says what each column is)")
    times = Counter(present)
    if twice := [name for name in names if times[name] > 1]:
        raise lines.error(f"has the column {twice[0]!r} {times[twice[0]]} times; rename all but one")


def _rows(lines: Lines, width: int, mark: str) -> Iterator[list[str]]:
    rows = csv.reader(lines, strict=True, delimiter=mark)
    next(rows)
    try:
        for row in rows:
            if len(row) != width:
                raise lines.error(f"has {len(row)} fields, but the header has {width}; is the file cut short?")
            yield row
    except csv.Error as error:
        raise lines.error(f"is not valid CSV: {error}") from None
