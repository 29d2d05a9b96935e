"""Objects out of a trace of JSON lines."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ksim.workload.lines import Lines


def first_object(line: str) -> dict[str, Any]:
    """Return the object that *line* holds, an empty one where it holds none."""
    value = _parsed(line)
    return value if isinstance(value, dict) else {}


def objects(lines: Lines) -> Iterator[dict[str, Any]]:
    """Yield the object of each line; raise DataError where a line holds none."""
    for line in lines:
        value = _parsed(line)
        if not isinstance(value, dict):
            raise lines.error("is not a JSON object; is the file cut short?")
        yield value


def member(row: Mapping[str, Any], names: tuple[str, ...], lines: Lines) -> Any:
    """Return the value under the first of *names* that *row* has; raise DataError where it has none."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise lines.error(f"has no {' or '.join(names)}, only {', '.join(row)}")


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
