"""Trace files to rows, in bounded memory."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ksim.foundation.catalog import find, names
from ksim.foundation.errors import DataError, UnknownName
from ksim.workload.ledger import Ledger
from ksim.workload.lines import Lines
from ksim.workload.order import from_zero, in_order, sort
from ksim.workload.row import Row
from ksim.workload.traces import TraceReader

FOLDER = "workload.traces"


def recognise(path: Path) -> str:
    """Return the name of the one format that the file at *path* is of, by its first line.

    Raises DataError where no format fits, or several do.
    """
    first = Lines(path).first()
    fitting = [name for name in names(FOLDER) if reader(name).recognises(first)]
    if len(fitting) == 1:
        return fitting[0]
    seen = first if len(first) <= 80 else f"{first[:77]}..."
    problem = f"fits the formats {' and '.join(fitting)}" if fitting else "is of no known format"
    raise DataError(f"{path}:1", f"{problem} (begins {seen!r}); "
                                 f"name one with --format or format = ...: {', '.join(fitting or names(FOLDER))}")


def reader(format: str) -> TraceReader:
    """Return the reader called *format*; raise UnknownName where there is none."""
    if ":" not in format and format not in names(FOLDER):
        raise UnknownName("trace format", format, names(FOLDER))
    found: TraceReader = find(FOLDER, format)()
    return found


def read(path: Path, format: str = "", chunk_tokens: int | None = None, sorting: bool = False,
         ledger: Ledger | None = None) -> Iterator[Row]:
    """Yield the rows of the trace at *path* that have tokens, in order of arrival, the first at 0 s.

    An empty *format* is recognised by the first line; *chunk_tokens* replaces
    the format's tokens to a block id; *sorting* holds and sorts the whole trace.
    Raises DataError, with file and line, for what cannot be read.
    """
    ledger = Ledger() if ledger is None else ledger
    lines = Lines(path)
    rows = _with_prompts(reader(format or recognise(path)).rows(lines, chunk_tokens), lines)
    return from_zero(_with_tokens(sort(rows, ledger) if sorting else in_order(rows, lines, ledger), ledger))


def _with_prompts(rows: Iterable[Row], lines: Lines) -> Iterator[Row]:
    for row in rows:
        if row.output and not row.prompt:
            raise lines.error("prompt is 0; a request has at least one token; remove the row")
        yield row


def _with_tokens(rows: Iterable[Row], ledger: Ledger) -> Iterator[Row]:
    for row in rows:
        ledger.rows += 1
        if not row.output:
            ledger.zero_outputs += 1
        else:
            yield row
