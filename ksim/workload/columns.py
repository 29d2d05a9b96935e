"""Named columns out of a CSV trace."""

import csv
from collections.abc import Iterator, Sequence
from operator import itemgetter

from ksim.workload.lines import Lines


def header(line: str) -> list[str]:
    """Return the names that *line* holds if it is the header of a CSV file."""
    try:
        return [name.strip() for name in next(csv.reader([line], strict=True))]
    except csv.Error:
        return []


def columns(lines: Lines, needed: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the fields of the *needed* and the *optional* columns of each row; one that is absent is empty.

    Raises DataError for a missing column and for a row that does not match the header.
    """
    names = header(lines.first())
    if missing := [name for name in needed if name not in names]:
        raise lines.error(f"has no column {missing[0]!r}, only {', '.join(names)}; is it of another format?")
    places = [names.index(name) if name in names else len(names) for name in (*needed, *optional)]
    pick = itemgetter(*places)
    for row in _rows(lines, len(names)):
        row.append("")
        yield pick(row)


def _rows(lines: Lines, width: int) -> Iterator[list[str]]:
    rows = csv.reader(lines, strict=True)
    next(rows)
    try:
        for row in rows:
            if len(row) != width:
                raise lines.error(f"has {len(row)} fields, but the header has {width}; is the file cut short?")
            yield row
    except csv.Error as error:
        raise lines.error(f"is not valid CSV: {error}") from None
