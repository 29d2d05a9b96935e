"""Distributions of lengths and of times, as a scenario writes them."""

from collections.abc import Iterator, Mapping
from math import log
from pathlib import Path
from typing import Literal

import numpy as np
from attrs import field, frozen
from attrs.validators import ge, gt, in_, optional
from numpy.typing import NDArray

from ksim.foundation.units import optional_quantity, quantity
from ksim.workload.columns import known_fields
from ksim.workload.lengths import LengthTable, Side, recorded_lengths

_Block = NDArray[np.float64]

#: So many values are drawn at a time.
_BLOCK = 4096


@frozen
class Fixed:
    """Always `value`."""

    value: float = field(converter=quantity, validator=ge(0))
    """The value. Unit: tokens, turns or s."""
    kind: Literal["fixed"] = "fixed"

    def blocks(self, rng: "np.random.Generator", side: Side) -> Iterator[_Block]:
        while True:
            yield np.full(_BLOCK, self.value)


@frozen
class Uniform:
    """Evenly between `low` and `high`."""

    low: float = field(converter=quantity, validator=ge(0))
    """Lowest value. Unit: tokens, turns or s."""
    high: float = field(converter=quantity, validator=ge(0))
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
    """Exponential with that `mean`."""

    mean: float = field(converter=quantity, validator=gt(0))
    """Mean. Unit: tokens, turns or s."""
    kind: Literal["exponential"] = "exponential"

    def blocks(self, rng: "np.random.Generator", side: Side) -> Iterator[_Block]:
        while True:
            yield rng.exponential(self.mean, _BLOCK)


@frozen
class LogNormal:
    """Log-normal with that `mean` or `median`, and `sigma`, the standard deviation of the logarithm."""

    sigma: float = field(validator=ge(0))
    """Standard deviation of the logarithm. Unit: none."""
    mean: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """Mean; give it or `median`. Unit: tokens, turns or s. Default: from `median`. Example: 500."""
    median: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """Median; give it or `mean`. Unit: tokens, turns or s. Default: from `mean`. Example: 300."""
    kind: Literal["lognormal"] = "lognormal"

    def __attrs_post_init__(self) -> None:
        if (self.mean is None) == (self.median is None):
            raise ValueError("give a mean or a median, one of them")

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
    """Lengths of the trace at `path` in their order, over and over, so that prompt and output stay together.

    `format` is recognised from the file where empty; `columns` and `empty` are
    what they are in a replay.
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


#: A distribution of tokens, turns or seconds: a table with a `kind`, and the fields of the class of that kind.
Formula = Fixed | Uniform | Exponential | LogNormal
#: A distribution of tokens, by formula or from data.
Lengths = Formula | FromTable | FromTrace


def tokens(lengths: Lengths, rng: "np.random.Generator", side: Side) -> Iterator[int]:
    """Yield draws for ever, rounded to whole tokens, at least 1.

    Raises UnknownName or DataError for a table or trace that cannot be read.
    """
    for block in lengths.blocks(rng, side):
        yield from np.maximum(1, np.rint(block)).astype(np.int64).tolist()


def seconds(times: Formula, rng: "np.random.Generator") -> Iterator[float]:
    """Yield draws for ever, in seconds."""
    for block in times.blocks(rng, "output"):
        yield from block.tolist()
