"""Which points a study tries: every combination of the values, or a sample of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from ksim.foundation.errors import ConfigError
from ksim.foundation.rng import stream
from ksim.study.axes import Range
from ksim.study.grid import Axis, Settings, check_keys, combinations, value_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

LATIN, RANDOM = "latin", "random"


@frozen
class Sample:
    """So many points: drawn one by one (`random`), or such that each axis is covered evenly (`latin` hypercube)."""

    kind: str
    count: int

    @classmethod
    def parse(cls, text: str) -> "Sample":
        """Parse ``latin:200`` or ``random:50`` as of ``--sample``; raises ConfigError."""
        kind, _, count = text.partition(":")
        if kind not in (LATIN, RANDOM) or not count.isdecimal() or not int(count):
            raise ConfigError("--sample", f"expected latin:COUNT or random:COUNT, such as latin:200, not {text!r}")
        return cls(kind, int(count))

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}"


def points(axes: Sequence[Axis | Range], sample: Sample | None = None, seed: int = 0) -> list[Settings]:
    """Every combination of the values of *axes*, or a *sample* drawn by *seed*; each point once.

    Raises ConfigError for two axes with the same key, and for a range without a sample.
    """
    check_keys([axis.key for axis in axes])
    lists = [axis for axis in axes if isinstance(axis, Axis)]
    ranges = [axis.key for axis in axes if isinstance(axis, Range)]
    if sample is None and ranges:
        raise ConfigError("--over", f"{ranges[0]}: a range needs --sample, such as latin:200; or list the values")
    if sample is None or (sample.kind == RANDOM and not ranges):
        return combinations(lists, sample.count if sample else None, seed)
    shares = _latin(sample.count, len(axes), seed) if sample.kind == LATIN else (
        stream(seed, "random").random((sample.count, len(axes))))
    drawn = [{axis.key: axis.at(share) for axis, share in zip(axes, row, strict=True)} for row in shares.tolist()]
    return list({tuple(map(value_text, settings.values())): settings for settings in drawn}.values())


def replication_seed(seed: int, replication: int) -> int:
    """The seed of a replication of a scenario with *seed*: that itself for replication 0, else derived from both."""
    return int(stream(seed, f"replication {replication}").integers(2**31)) if replication else seed


def _latin(count: int, axes: int, seed: int) -> "NDArray[np.float64]":
    """A Latin hypercube: for each axis, one point in each of *count* equal parts of it, in an order of its own."""
    generator = stream(seed, "latin")
    parts = np.stack([generator.permutation(count) for _ in range(axes)], axis=1)
    return np.asarray((parts + generator.random((count, axes))) / count)
