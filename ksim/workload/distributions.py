"""Distributions of lengths and times, as a scenario states them.
"""

from collections.abc import Iterator, Mapping
from itertools import repeat
from math import log
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from attrs import field, frozen
from attrs.validators import ge, gt, in_, le, optional
from numpy.typing import NDArray

from ksim.foundation.catalog import load
from ksim.foundation.config import structure
from ksim.foundation.errors import DataError
from ksim.foundation.units import Amount, optional_quantity, quantity
from ksim.workload.reading import read
from ksim.workload.rows import known_fields

#: One of the two lengths of a request.
Side = Literal["prompt", "output"]


@frozen
class LengthTable:
    """Quantiles of the lengths of a trace, one per probability, and the rate and burstiness of its arrivals.

    `burstiness` is the shape of a gamma distribution whose gaps vary as those of
    the trace: 1 / (standard deviation / mean)^2.  `rate` is in requests/s, and
    `requests` is the number of requests measured.
    """

    source: str
    licence: str
    requests: int = field(validator=gt(0))
    rate: float = field(validator=gt(0))
    burstiness: float = field(validator=gt(0))
    probabilities: tuple[float, ...]
    prompt: tuple[float, ...]
    output: tuple[float, ...]
    note: str = ""

    def __attrs_post_init__(self) -> None:
        for name, values in (("probabilities", self.probabilities), ("prompt", self.prompt), ("output", self.output)):
            if len(values) != len(self.probabilities) or list(values) != sorted(values):
                raise ValueError(f"{name} must be in rising order, one per probability")
        if len(self.probabilities) < 2 or (self.probabilities[0], self.probabilities[-1]) != (0, 1):
            raise ValueError("probabilities must run from 0 to 1")

    @classmethod
    def named(cls, name: str) -> "LengthTable":
        """Return table *name* of ksim/data/lengths, or of the .toml file at that path.

        Raises UnknownName for an unknown name, DataError or ConfigError for a faulty file.
        """
        return structure(cls, load("lengths", name), f"lengths/{name}")


def recorded_lengths(path: Path, format: str, side: Side, columns: Mapping[str, str] | None = None,
                     empty: str | None = None) -> NDArray[np.float64]:
    """Return the lengths of all rows of a trace, in order of arrival; raise DataError if there are none."""
    rows = read(path, format, columns=columns, empty=empty, arrivals=repeat(0.0))
    lengths = np.fromiter((getattr(row, side) for row in rows), dtype=np.float64)
    if not len(lengths):
        raise DataError(str(path), "has no request with tokens")
    return lengths


_Block = NDArray[np.float64]

#: Values drawn at a time.
_BLOCK = 4096
#: The most tokens of a request, and the longest time in seconds; larger draws are cut to it, as no model takes more.
MOST = 1e7
_FROM_ZERO: list[Any] = [ge(0), le(MOST)]
_ABOVE_ZERO: list[Any] = [gt(0), le(MOST)]


@frozen
class Fixed:
    """Always `value`."""

    value: Amount = field(converter=quantity, validator=_FROM_ZERO)
    """The value. Unit: tokens, turns or s."""
    kind: Literal["fixed"] = "fixed"

    def blocks(self, rng: "np.random.Generator", side: Side) -> Iterator[_Block]:
        while True:
            yield np.full(_BLOCK, self.value)


@frozen
class Uniform:
    """Evenly between `low` and `high`."""

    low: Amount = field(converter=quantity, validator=_FROM_ZERO)
    """Lowest value. Unit: tokens, turns or s."""
    high: Amount = field(converter=quantity, validator=_FROM_ZERO)
    """Highest value. Unit: tokens, turns or s."""
    kind: Literal["uniform"] = "uniform"

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low ({self.low:g}) must not be above high ({self.high:g})")

    def blocks(self, rng: "np.random.Generator", side: Side) -> Iterator[_Block]:
        while True:
            yield rng.uniform(self.low, self.high, _BLOCK)


@frozen
class Exponential:
    """Exponentially distributed with that `mean`."""

    mean: Amount = field(converter=quantity, validator=_ABOVE_ZERO)
    """Mean. Unit: tokens, turns or s."""
    kind: Literal["exponential"] = "exponential"

    def blocks(self, rng: "np.random.Generator", side: Side) -> Iterator[_Block]:
        while True:
            yield rng.exponential(self.mean, _BLOCK)


@frozen
class LogNormal:
    """Log-normal with that `mean` or `median`; `sigma` is the standard deviation of the logarithm."""

    sigma: float = field(validator=(ge(0), le(5)))
    """Standard deviation of the logarithm. Unit: none."""
    mean: Amount | None = field(default=None, converter=optional_quantity, validator=optional(_ABOVE_ZERO))
    """Mean; give it or `median`. Unit: tokens, turns or s. Default: from `median`. Example: 500."""
    median: Amount | None = field(default=None, converter=optional_quantity, validator=optional(_ABOVE_ZERO))
    """Median; give it or `mean`. Unit: tokens, turns or s. Default: from `mean`. Example: 300."""
    kind: Literal["lognormal"] = "lognormal"

    def __attrs_post_init__(self) -> None:
        if (self.mean is None) == (self.median is None):
            raise ValueError("give either mean or median")

    def blocks(self, rng: "np.random.Generator", side: Side) -> Iterator[_Block]:
        middle = log(self.median) if self.median else log(self.mean or 0) - self.sigma**2 / 2
        while True:
            yield rng.lognormal(middle, self.sigma, _BLOCK)


@frozen
class FromTable:
    """Lengths from a table of quantiles: `name` is one of ksim/data/lengths, or a .toml file like those."""

    name: str
    """Table of quantiles, or the path of one in TOML. Names: lengths."""
    kind: Literal["table"] = "table"

    def blocks(self, rng: "np.random.Generator", side: Side) -> Iterator[_Block]:
        table = LengthTable.named(self.name)
        while True:
            yield np.interp(rng.random(_BLOCK), table.probabilities, getattr(table, side))


@frozen
class FromTrace:
    """Lengths of the trace at `path` in their order, repeated at its end; prompt and output of a row stay together.

    If `format` is empty, it is recognised from the file.  `columns` and `empty` mean
    the same as in a replay.
    """

    path: Path = field(converter=Path)
    """Trace file, relative to the scenario."""
    format: str = ""
    """Format of the trace; recognised from the file where empty. Names: workload.traces."""
    columns: Mapping[str, str] = field(factory=dict, validator=known_fields)
    """Which column of the file is which field; where its format is not known. Example: {prompt = "input"}."""
    empty: str | None = field(default=None, validator=optional(in_(("skip", "error"))))
    """What happens to rows without tokens. Default: set by the format. Example: "skip"."""
    kind: Literal["trace"] = "trace"

    def blocks(self, rng: "np.random.Generator", side: Side) -> Iterator[_Block]:
        lengths = recorded_lengths(self.path, self.format, side, self.columns, self.empty)
        while True:
            yield lengths


#: A distribution of tokens, turns or seconds, by formula: a table with a `kind` and the fields of its class.
Formula = Fixed | Uniform | Exponential | LogNormal
#: A distribution of seconds, by formula.
Times = Annotated[Formula, "s"]
#: A distribution of tokens, by formula or from data.
Lengths = Formula | FromTable | FromTrace


def check_tokens(lengths: Lengths, name: str) -> None:
    """Raise ValueError for lengths that round to 0 tokens, always or on average; *name* is their key."""
    for key in ("value", "low", "mean", "median"):
        number = getattr(lengths, key, None)
        if number is not None and number < 0.5:
            raise ValueError(f"{name}.{key} = {number:g} rounds to 0 tokens; make it 1 or more")


def tokens(lengths: Lengths, rng: "np.random.Generator", side: Side) -> Iterator[int]:
    """Yield draws without end, rounded to whole tokens, at least 1 and at most `MOST`.

    Raises UnknownName or DataError for a table or trace that cannot be read.
    """
    for block in lengths.blocks(rng, side):
        yield from np.clip(np.rint(block), 1, MOST).astype(np.int64).tolist()


def seconds(times: Formula, rng: "np.random.Generator") -> Iterator[float]:
    """Yield draws without end, in seconds, at most `MOST`."""
    for block in times.blocks(rng, "output"):
        yield from np.minimum(block, MOST).tolist()
