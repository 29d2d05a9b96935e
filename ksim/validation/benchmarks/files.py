"""The files that benchmark clients write: parsed, with the place of each part for messages.

Shapes that results of several clients share: lists with an entry per request, and named statistics.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from math import isfinite, isinf
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from ksim.foundation.errors import DataError
from ksim.foundation.files import regular_file
from ksim.foundation.units import LONGEST
from ksim.validation.benchmarks.recorded import (
    LATENCIES,
    RATES,
    STATISTICS,
    ClientLoad,
    Recorded,
    RecordedLengths,
    ServedRequest,
)

#: Endings of files that may be results.
ENDINGS = (".json", ".jsonl", ".yaml", ".yml", ".txt")
#: The most bytes of a result: clients write the text of every answer.
_LONGEST = 2**30
_BLANK = re.compile(r"\s*")


@frozen
class PlacedTable:
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
        return [_number(self, f"{key}[{index}]", value, 0.0) for index, value in enumerate(self.items(key))]

    def some_numbers(self, key: str) -> list[float | None]:
        """The list of numbers at *key*, of any sign, in which None may be."""
        return [None if value is None else _number(self, f"{key}[{index}]", value, None)
                for index, value in enumerate(self.items(key))]

    def items(self, key: str) -> list[Any]:
        """The list at *key*; raises DataError for anything else."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.error(f"{key} is {_shown(value)}; expected a list")
        return value

    def tables(self, key: str) -> "list[PlacedTable]":
        """The tables in the list at *key*."""
        return [self._table(f"{key}[{index}]", value) for index, value in enumerate(self.items(key))]

    def inner(self, key: str) -> "PlacedTable":
        """The table at *key*; raises DataError where there is none."""
        return self._table(key, self.values.get(key))

    def branch(self, *keys: str) -> "PlacedTable":
        """The table behind *keys*; an empty one where there is none."""
        table = self
        for key in keys:
            found = isinstance(table.get(key), Mapping)
            table = table.inner(key) if found else PlacedTable(f"{table.where}: {key}", {})
        return table

    def _table(self, key: str, value: Any) -> "PlacedTable":
        if not isinstance(value, Mapping):
            raise self.error(f"{key} is {_shown(value)}; expected a table")
        return PlacedTable(f"{self.where}.{key}" if ": " in self.where else f"{self.where}: {key}", value)


def _number(table: PlacedTable, key: str, value: Any, least: float | None) -> float:
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


def tables_of(path: Path) -> list[PlacedTable]:
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
    """Name the kind of a *text* that is neither JSON nor YAML, by its beginning: HTML, or a table; None otherwise."""
    first, _, rest = text.lstrip().partition("\n")
    if re.match(r"<(!doctype|html|\?xml|head|body|table)\b", first, re.IGNORECASE):
        return "HTML" if "xml" not in first[:6].lower() else "XML"
    for sign, name in ((",", "CSV"), ("\t", "a table of tabs")):
        columns = first.count(sign)
        if columns and not re.search(r"[{}\[\]:]", first) and rest.partition("\n")[0].count(sign) >= columns:
            return name
    return None


def _tables(where: str, value: Any) -> Iterator[PlacedTable]:
    members = value if isinstance(value, list) else [value]
    for index, member in enumerate(members):
        if not isinstance(member, Mapping):
            raise DataError(where, f"holds {_shown(member)}; expected a table, as a benchmark client writes it")
        yield PlacedTable(f"{where}: [{index}]" if isinstance(value, list) else where, member)


def _json(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    decoder, index = json.JSONDecoder(), 0
    line, counted = 1, 0
    several = False
    while (index := _BLANK.match(text, index).end()) < len(text):  # type: ignore[union-attr]
        line, counted = line + text.count("\n", counted, index), index
        try:
            value, end = decoder.raw_decode(text, index)
        except (ValueError, RecursionError) as error:
            raise _not_json(path, text, error) from None
        several = several or bool(text[end:].strip())
        yield (f"{path}:{line}" if several else str(path)), value
        index = end


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


#: Seconds in a unit of time.
SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "ns": 1e-9}
_WORDS = {"mean": ("mean",), "p50": ("median", "p50")}


def worded(table: PlacedTable, latencies: Mapping[str, str], ending: str, seconds: float) -> dict[str, float]:
    """Statistics under keys such as ``median_ttft_ms``; *latencies* has the client's word for each of ours."""
    figures = {}
    for latency, word in latencies.items():
        for statistic in STATISTICS:
            keys = [f"{name}_{word}{ending}" for name in _WORDS.get(statistic, (statistic,))]
            key = next((key for key in keys if key in table), None)
            if key:
                figures[f"{latency}_{statistic}"] = seconds * table.number(key)
    return figures


def throughputs(table: PlacedTable) -> dict[str, float]:
    """The rates that *table* reports under the names of `vllm bench serve`."""
    return {name: table.number(name) for name in RATES if name in table}


def rate_of(table: PlacedTable, key: str = "request_rate") -> float | None:
    """The rate at *key*; None for an infinite one, which clients write as "inf", Infinity or a negative number."""
    value = table.get(key)
    if value is None or value in ("inf", "Infinity", "trace") or (isinstance(value, float) and isinf(value)):
        return None
    rate = table.number(key, least=None)
    return rate if rate > 0 else None


def concurrency_of(table: PlacedTable, key: str) -> int | None:
    """The concurrency at *key*; None where there is none, or 0 stands for it."""
    return (table.count(key) or None) if key in table else None


def columns(table: PlacedTable) -> tuple[list[ServedRequest], int]:
    """The answered requests of lists with an entry per request, as vLLM's and SGLang's clients write them.

    The second value is how many requests failed: they have an error, or no output.
    """
    prompts, outputs, ttfts = (table.numbers(name) for name in ("input_lens", "output_lens", "ttfts"))
    gaps = table.items("itls") if "itls" in table else [[]] * len(prompts)
    errors = table.items("errors") if "errors" in table else [""] * len(prompts)
    optional = {name: table.some_numbers(name) if name in table else None
                for name in ("latencies", "start_times", "queue_times", "server_queue_times")}
    given = {"output_lens": outputs, "ttfts": ttfts, "itls": gaps, "errors": errors, **optional}
    for name, values in given.items():
        if values is not None and len(values) != len(prompts):
            raise table.error(f"{name} has {len(values)} entries, but input_lens has {len(prompts)}; is the file of one"
                              f" run?")
    served, failed = [], 0
    rows = zip(prompts, outputs, ttfts, gaps, errors, *(values or repeat(None) for values in optional.values()),
               strict=False)
    for prompt, output, ttft, row_gaps, error, latency, start, queued, server in rows:
        if error or not output or not prompt:
            failed += 1
            continue
        between = _gaps(table, row_gaps)
        served.append(ServedRequest(
            int(prompt), int(output), ttft, ttft + sum(between) if latency is None else latency,
            arrival=None if start is None else start - (queued or 0.0), sent=start, queue=server, gaps=between))
    return served, failed


def run_of(path: Path, name: str, tool: str, table: PlacedTable, latencies: Mapping[str, str]) -> Recorded:
    """The run in a *table* that vLLM's or SGLang's client wrote; *latencies* has the client's words for ours."""
    detailed = "input_lens" in table and "ttfts" in table
    served, failed = columns(table) if detailed else ([], 0)
    done = len(served) if detailed else table.count("completed")
    return Recorded(
        path, name, tool, done, max(failed, table.count("failed") if "failed" in table else 0), served,
        prompts=mean_lengths(table, "total_input_tokens", done),
        outputs=mean_lengths(table, "total_output_tokens", done),
        load=ClientLoad(rate_of(table), concurrency_of(table, "max_concurrency"), table.maybe("burstiness") or 1.0),
        duration=table.maybe("duration"), reported={**worded(table, latencies, "_ms", 1e-3), **throughputs(table)})


def _gaps(table: PlacedTable, values: object) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(isinstance(gap, int | float) and 0 <= gap < LONGEST for gap in values):
        raise table.error("itls holds something else than a list of numbers for each request, in seconds")
    return tuple(values)


def with_units(table: PlacedTable, names: Mapping[str, str]) -> dict[str, float]:
    """Statistics in tables with a `unit`, such as ``{"unit": "ms", "avg": 1.0, "p50": 0.9}``; *names* has their keys.

    Raises DataError for a unit that is none of time.
    """
    figures: dict[str, float] = {}
    for latency, key in names.items():
        if not isinstance(table.get(key), Mapping):
            continue
        inner = table.inner(key)
        unit = str(inner.get("unit"))
        if unit not in SECONDS:
            raise inner.error(f"unit is {unit!r}; expected one of {', '.join(SECONDS)}")
        figures |= {f"{latency}_{name}": SECONDS[unit] * inner.number(word) for name in STATISTICS
                    if (word := "avg" if name == "mean" else name) in inner}
    return figures


def averages(table: PlacedTable, names: Mapping[str, str]) -> dict[str, float]:
    """The `avg` of the tables at the keys in *names*, by our names."""
    return {ours: table.inner(key).number("avg") for ours, key in names.items()
            if isinstance(table.get(key), Mapping) and "avg" in table.inner(key)}


def lengths_of(table: PlacedTable) -> RecordedLengths:
    """Lengths from a table with `avg` (or `mean`), `min`, `max` and percentiles such as `p90`."""
    mean = table.number("avg") if "avg" in table else table.number("mean")
    shares = {"min": 0.0, "max": 1.0, **{f"p{share}": share / 100 for share in (1, 5, 10, 25, 50, 75, 90, 95, 99)}}
    return RecordedLengths(mean, {share: table.number(name) for name, share in shares.items() if name in table})


def mean_lengths(table: PlacedTable, key: str, requests: int) -> RecordedLengths:
    """Lengths of *requests* of which only the sum at *key* is known."""
    return RecordedLengths(table.number(key) / max(requests, 1))


def run_per_table(path: Path, tables: Sequence[PlacedTable],
                  run: Callable[[Path, PlacedTable, str], Recorded]) -> Iterator[Recorded]:
    """The *run* of each table, which has a number in its name where there are several."""
    for number, table in enumerate(tables):
        yield run(path, table, labelled(path.stem, number, len(tables)))


def labelled(name: str, number: int, of: int) -> str:
    """The name of run *number* in a file of *of* runs."""
    return name if of == 1 else f"{name} #{number + 1}"


def all_latencies(words: Sequence[str]) -> dict[str, str]:
    """Our latencies with a client's words for them."""
    return dict(zip(LATENCIES, words, strict=True))
