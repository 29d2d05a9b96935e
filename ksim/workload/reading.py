"""Read traces: recognise the format, and yield the rows in bounded memory."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, repeat
from math import isnan
from pathlib import Path
from typing import NamedTuple

from ksim.foundation.catalog import find, names
from ksim.foundation.config import Choice, structure
from ksim.foundation.errors import ConfigError, DataError, KsimError, UnknownName
from ksim.workload.jsonl import first_object
from ksim.workload.lines import Lines
from ksim.workload.rows import TOGETHER, UNITS, Ledger, Row, unit_of
from ksim.workload.shaping import from_zero, in_order, sort
from ksim.workload.traces import JSON, TraceReader

FOLDER = "workload.traces"


def recognise(path: Path) -> str:
    """Return the name of the format of the file at *path*, by how it begins.

    Raises DataError if no format fits, or if several do.
    """
    if path.is_dir():
        return _recognised_folder(path)
    first = Lines(path).beginning()
    asked = names(FOLDER) if first[0] in "[{" else (name for name in names(FOLDER) if name not in JSON)
    fitting = [name for name in asked if reader(name).recognises(first)]
    first_object.cache_clear()  # the line may be a whole session of megabytes
    if len(fitting) == 1:
        return fitting[0]
    if is_scenario(first, path):
        raise DataError(str(path), f"is a scenario, not a trace: ksim run {path.name}")
    seen = first if len(first) <= 80 else f"{first[:77]}..."
    problem = f"fits the formats {' and '.join(fitting)}" if fitting else "is in no known format"
    raise DataError(f"{path}:1", f"{problem} (begins {seen!r}); "
                                 f"name one with --format or format = ...: {', '.join(fitting or names(FOLDER))}; "
                                 f"or say what its columns are, with --columns arrival=...,prompt=...,output=...")


def _recognised_folder(path: Path) -> str:
    """The format of the files in the folder *path*, which are one trace; raises DataError where they cannot be one."""
    parts = Lines(path).parts()
    name = recognise(parts[0].path) if parts else ""
    if not getattr(find(FOLDER, name) if name else None, "folders", False):
        raise DataError(str(path), f"is a folder{f' of {name} files' if name else ''}; name a file in it")
    return name


def is_scenario(first: str, path: Path) -> bool:
    """Whether a file that begins with the line *first* is a scenario."""
    return path.suffix.lower() == ".toml" and not first.startswith("{")


def reader(format: "str | Choice", seed: int = 0) -> TraceReader:
    """Return the reader of *format*, with its options; a reader that draws at random gets *seed*.

    Raises UnknownName for an unknown format, ConfigError for an option that it does not take.
    """
    chosen = Choice.of(format)
    if ":" not in chosen.name and chosen.name not in names(FOLDER):
        raise UnknownName("trace format", chosen.name, names(FOLDER))
    reader_class = find(FOLDER, chosen.name)
    fields = [field.name for field in getattr(reader_class, "__attrs_attrs__", ())]
    options = {"seed": seed, **chosen.options} if "seed" in fields else dict(chosen.options)
    if options and not fields:
        raise ConfigError(f"format {chosen.name}", f"takes no options, and was given {', '.join(options)}")
    made: TraceReader = structure(reader_class, options, f"format {chosen.name}") if fields else reader_class()
    return made


def read(path: Path, format: "str | Choice" = "", chunk_tokens: int | None = None, sorting: bool = False,
         ledger: Ledger | None = None, *, columns: Mapping[str, str] | None = None, time_unit: str | None = None,
         empty: str | None = None, arrivals: Iterator[float] | None = None, seed: int = 0) -> Iterator[Row]:
    """Yield the rows of the trace at *path* that have tokens, in order of arrival, the first at 0 s.

    An empty *format* is recognised from the file; *columns* names the columns that
    hold the fields of `ksim.workload.rows.FIELDS` in a file of no known format.
    *chunk_tokens* (tokens per block id), *time_unit* and *empty* ("skip" or "error",
    for rows without tokens) replace those of the format.  With *sorting*, the whole
    trace is held in memory and sorted.  *arrivals* are used if the trace has none;
    *seed* is for formats that draw at random.  Raises DataError, with file and line.
    """
    ledger = Ledger() if ledger is None else ledger
    opened = _open(path, format, columns, time_unit, empty, seed)
    if remark := getattr(opened.reader, "remark", ""):
        ledger.notes.append(remark)
    if arrivals is None and path.is_dir() and getattr(opened.reader, "folders", False):
        ledger.notes.append(TOGETHER)
        arrivals = repeat(0.0)
    rows = _timed(opened.reader.rows(opened.lines, chunk_tokens), opened.lines, arrivals)
    if (name := (columns or {}).get("arrival", "")) and not (time_unit or opened.lines.dates or unit_of(name)):
        ledger.notes.append(f"column {name!r} does not say its unit; arrivals are taken in seconds (--time-unit)")
    ordered = sort(rows, ledger) if sorting else in_order(rows, opened.lines, ledger)
    return from_zero(_with_tokens(ordered, ledger))


def clock(path: Path, format: "str | Choice" = "", columns: Mapping[str, str] | None = None,
          time_unit: str | None = None, empty: str | None = None) -> str:
    """Return the unit of the trace's times, "dates", or "" if it has no arrival times.

    Raises DataError for a first row that cannot be read.
    """
    opened = _open(path, format, columns, time_unit, empty, 0)
    first = next(opened.reader.rows(opened.lines, None), None)
    if first is None or isnan(first.arrival):
        return ""
    return "dates" if opened.lines.dates else time_unit or _unit(opened.reader)


def may_abort(path: Path, format: "str | Choice" = "", columns: Mapping[str, str] | None = None) -> bool:
    """Return whether rows may say when clients hang up; False for a trace that cannot be read."""
    try:
        opened = _open(path, format, columns, None, None, 0)
        own = getattr(opened.reader, "columns", None)
        return own is not None and opened.lines.mention(own.get("aborted", "aborted").rpartition(".")[2])
    except KsimError:
        return False


class _Opened(NamedTuple):
    reader: TraceReader
    lines: Lines


def _open(path: Path, format: "str | Choice", columns: Mapping[str, str] | None, time_unit: str | None,
          empty: str | None, seed: int) -> _Opened:
    chosen = _with_columns(Choice.of(format), columns or {})
    if not chosen.name:
        chosen = Choice(recognise(path))
    made = reader(chosen, seed)
    if time_unit and _unit(made) not in UNITS:
        raise ConfigError("time_unit", f"format {chosen.name} has {_unit(made) or 'no times'}, which have no unit; "
                                       f"leave out time_unit")
    skips = (empty or getattr(made, "empty", "skip")) == "skip"
    return _Opened(made, Lines(path, UNITS[time_unit] if time_unit else 0.0, 0 if skips else 1))


def _unit(made: TraceReader) -> str:
    return getattr(made, "time_unit", "s")


def _with_columns(chosen: Choice, columns: Mapping[str, str]) -> Choice:
    """Give *columns* to the format plain, the only one that takes any."""
    if not columns:
        return chosen
    if chosen.name not in ("", "plain"):
        raise ConfigError("columns", f"format {chosen.name} has its own columns; leave out one of the two")
    return Choice("plain", {**chosen.options, "columns": dict(columns)})


def _timed(rows: Iterator[Row], lines: Lines, arrivals: Iterator[float] | None) -> Iterator[Row]:
    """Give *rows* the *arrivals* if they have none; turns of a session arrive with the first turn."""
    first = next(rows, None)
    if first is None:
        return iter(())
    rows = chain((first,), rows)
    return _placed(rows, lines, arrivals) if isnan(first.arrival) else rows


def _placed(rows: Iterable[Row], lines: Lines, arrivals: Iterator[float] | None) -> Iterator[Row]:
    now, session = 0.0, None
    times: Iterator[float | None] = chain((0.0,), repeat(None)) if arrivals is None else arrivals
    for row in rows:
        if not row.session or row.session != session:
            time = next(times)
            if time is None:
                raise lines.error("has no arrival time; set a rate at which requests arrive (--request-rate, or rate in"
                                  " the scenario), or name the column of arrivals (--columns arrival=...)")
            now, session = time, row.session
        yield row._replace(arrival=now)


def _with_tokens(rows: Iterable[Row], ledger: Ledger) -> Iterator[Row]:
    for row in rows:
        ledger.rows += 1
        if not row.output:
            ledger.zero_outputs += 1
        elif not row.prompt:
            ledger.zero_prompts += 1
        else:
            yield row
