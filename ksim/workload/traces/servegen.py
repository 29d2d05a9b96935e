"""ServeGen's clients: rates per 10 minutes and lengths per 6 hours, from which requests are drawn at random.

https://github.com/alibaba/ServeGen
"""

import ast
import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from attrs import field, frozen
from attrs.validators import ge
from numpy.typing import NDArray

from ksim.foundation.errors import DataError
from ksim.foundation.rng import stream
from ksim.workload.jsonl import documents
from ksim.workload.lines import Lines
from ksim.workload.rows import Row, header, moment, shown

__all__ = ["ServeGen"]

#: Seconds for which a rate holds.
_WINDOW = 600.0
_GAPS = ("Gamma", "Weibull")
_PROMPT, _OUTPUT = ("input_tokens", "text_tokens"), ("output_tokens",)
#: The most requests in one window; more are an error.
_MOST = 10**7


@frozen
class ServeGen:
    """Draws the requests of one client of a pool, from `chunk-i-trace.csv` and `chunk-i-dataset.json` beside it.

    A folder, if the format is named, is a pool: each client in it is a tenant with
    its own random numbers.

    A window of 600 s has rate x 600 requests.  The gaps between them are drawn from
    the window's distribution and stretched to fill it.  Prompt and output are drawn
    independently, from the lengths in force.  Images, audio and video are ignored.
    """

    seed: int = field(default=0, validator=ge(0))

    example = "0,0.01,1.5,Gamma,0.5,200\n600,0,0,,0,0\n1200,0.005,1.2,Weibull,0.8,150\n"
    beside: ClassVar[Mapping[str, str]] = {
        "dataset.json": '{"0": {"input_tokens": "{20: 0.25, 300: 0.75}", "output_tokens": "{5: 1.0}"}, '
        '"900": {"input_tokens": "{40: 1.0}", "output_tokens": "{1: 0.5, 9: 0.5}"}}'}
    time_unit = "s"
    empty = "skip"

    @property
    def remark(self) -> str:
        return f"requests are drawn at random from ServeGen's rates and lengths, with seed {self.seed}"

    def recognises(self, first: str) -> bool:
        fields = header(first)
        return len(fields) == 6 and fields[3] in ("", *_GAPS) and all(map(_is_number, (*fields[:3], *fields[4:])))

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        if not lines.path.is_dir():
            yield from self._client(lines, "")
            return
        files = sorted(file for pattern in ("*-trace.csv", "*-trace.csv.gz") for file in lines.path.glob(pattern))
        if not files:
            raise lines.error("holds no client of ServeGen; expected files such as chunk-0-trace.csv")
        clients = (Lines(file, lines.per_second, lines.least_tokens) for file in files)
        yield from heapq.merge(*(self._client(client, client.path.name.partition("-trace")[0]) for client in clients),
                               key=attrgetter("arrival"))

    def _client(self, lines: Lines, name: str) -> Iterator[Row]:
        lengths = _Lengths(_beside(lines.path))
        rng = stream(self.seed, f"workload.servegen.{name}" if name else "workload.servegen")
        before = -1.0
        for line in lines:
            window = _window(line, lines)
            if window.start <= before:
                raise lines.error(f"starts at {window.start:g} s, not after the window before it ({before:g} s)")
            before = window.start
            if window.requests:
                prompts, outputs = lengths.draw(window, rng, lines)
                for arrival, prompt, output in zip(window.arrivals(rng), prompts, outputs, strict=True):
                    yield Row(arrival, prompt, output, tenant=name)


class _Window(NamedTuple):
    start: float
    requests: int
    kind: str
    shape: float
    scale: float

    def arrivals(self, rng: "np.random.Generator") -> list[float]:
        """Draw the gap before each request and the one after the last, and stretch them to fill the window."""
        size = self.requests + 1
        gaps = rng.gamma(self.shape, self.scale, size) if self.kind == "Gamma" else rng.weibull(self.shape, size)
        with np.errstate(over="ignore"):  # extreme shapes, which no real client has
            total = gaps.sum()
        if not 0 < total < math.inf:
            gaps, total = np.ones(size), float(size)
        arrivals: list[float] = (self.start + np.cumsum(gaps[:-1] / total) * _WINDOW).tolist()
        return arrivals


def _window(line: str, lines: Lines) -> _Window:
    fields = header(line)
    if len(fields) != 6:
        raise lines.error(f"has {len(fields)} fields; expected 6: start, rate, CV, distribution, shape, scale; is the "
                          f"file cut short?")
    start, rate, _, kind, shape, scale = fields
    requests = moment(rate, "rate", lines) * (lines.per_second or 1) * _WINDOW
    if requests > _MOST:
        raise lines.error(f"rate is {shown(rate)}; expected at most {_MOST / _WINDOW:,.0f} requests/s")
    window = _Window(moment(start, "start", lines), round(requests), kind, _positive(shape), _positive(scale))
    if window.requests and (kind not in _GAPS or math.isnan(window.shape + window.scale)):
        raise lines.error(f"has traffic, but its gaps are {shown(kind)} of shape {shown(shape)} and scale "
                          f"{shown(scale)}; expected {' or '.join(_GAPS)} with both above 0")
    return window


class _Lengths:
    """The distributions of lengths, by the time from which they are in force."""

    def __init__(self, path: Path):
        self.lines = Lines(path)
        tables = next(documents(self.lines), {})
        try:
            self.tables = sorted((float(start), table) for start, table in tables.items() if isinstance(table, Mapping))
        except ValueError:
            raise self.lines.error(f"has keys {shown(list(tables)[:3])}; expected the starts of windows, in seconds"
                                   ) from None
        self.starts = [start for start, _ in self.tables]

    def draw(self, window: _Window, rng: "np.random.Generator", lines: Lines) -> tuple[list[int], list[int]]:
        """Return prompts and outputs of the requests of *window*; raise DataError if no lengths are in force."""
        place = bisect_right(self.starts, window.start) - 1
        table = self.tables[place][1] if place >= 0 else {}
        drawn = []
        for names in (_PROMPT, _OUTPUT):
            text = next((table[name] for name in names if name in table), "{}")
            values, shares = self._distribution(text, names[0])
            if not len(values):
                raise lines.error(f"has traffic at {window.start:g} s, but {self.lines.path.name} has no {names[0]} "
                                  f"there")
            drawn.append(rng.choice(values, window.requests, p=shares).tolist())
        return drawn[0], drawn[1]

    def _distribution(self, text: Any, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Parse a Python dict of tokens and probabilities, which is how ServeGen writes it."""
        problem = f"{name} is {shown(text)}; expected a dict of whole tokens and probabilities, as a text"
        try:
            table = ast.literal_eval(text)
            values = np.array([int(value) for value in table], dtype=np.int64)
            shares = np.array([float(share) for share in table.values()])
        except (ValueError, SyntaxError, TypeError, AttributeError, OverflowError, MemoryError, RecursionError):
            raise self.lines.error(problem) from None
        total = shares.sum() if len(shares) else 1.0
        if not (0 < total < math.inf) or (shares < 0).any() or (values < 0).any() or (values > 10**9).any():
            raise self.lines.error(problem)
        return values, shares / total


def _beside(path: Path) -> Path:
    """Return the file of lengths that belongs to the file of rates at *path*."""
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    if not name.endswith("trace"):
        raise DataError(str(path), "does not have a name of ServeGen; expected chunk-i-trace.csv, with "
                                   "chunk-i-dataset.json beside it")
    plain = path.with_name(f"{name.removesuffix('trace')}dataset.json")
    packed = plain.with_name(f"{plain.name}.gz")
    lengths = next((file for file in (plain, packed) if file.exists()), None)
    if lengths is None:
        raise DataError(str(path), f"has the rates of a client of ServeGen, but its lengths are not beside it: "
                                   f"{plain.name} is missing")
    return lengths


def _positive(text: str) -> float:
    number = float(text) if _is_number(text) else math.nan
    return number if 0 < number < math.inf else math.nan


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
