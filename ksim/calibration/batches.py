"""Ragged batches of attention in flat arrays, and the types of arrays of measurements."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Texts = NDArray[np.str_]
Column = NDArray[Any]


@frozen(eq=False)
class PointBatches:
    """The sequences of each point of attention, as runs of equal ones; point i has the runs starts[i]:starts[i + 1].

    A run has `counts` sequences, each of `qlens` new tokens and `kvlens` tokens in the cache, the new ones included.
    """

    starts: Ints
    counts: Ints
    qlens: Ints
    kvlens: Ints

    @classmethod
    def uniform(cls, counts: Ints, qlens: Ints, kvlens: Ints) -> Self:
        """Make batches of one run per point."""
        return cls(np.arange(len(counts) + 1, dtype=np.int64), counts, qlens, kvlens)

    @classmethod
    def flat(cls, starts: Ints, qlens: Ints, kvlens: Ints) -> Self:
        """Make batches of lengths with an entry per sequence; those of point i are starts[i]:starts[i + 1]."""
        begins_run = np.ones(len(qlens), dtype=bool)
        begins_run[1:] = (qlens[1:] != qlens[:-1]) | (kvlens[1:] != kvlens[:-1])
        begins_run[starts[:-1][starts[:-1] < len(qlens)]] = True
        heads = np.flatnonzero(begins_run)
        runs_before = np.concatenate(([0], np.cumsum(begins_run)))
        return cls(runs_before[starts], np.diff(heads, append=len(qlens)), qlens[heads], kvlens[heads])

    @classmethod
    def of(cls, *batches: Sequence[tuple[int, int]]) -> Self:
        """Make batches of sequences given as (new tokens, tokens in the cache)."""
        pairs = np.array([pair for batch in batches for pair in batch], dtype=np.int64).reshape(-1, 2)
        starts = np.cumsum([0, *map(len, batches)], dtype=np.int64)
        return cls.flat(starts, pairs[:, 0], pairs[:, 1])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def lengths(self, point: int) -> tuple[Ints, Ints]:
        """Return the qlens and kvlens of one point, with an entry per sequence."""
        runs = slice(self.starts[point], self.starts[point + 1])
        return np.repeat(self.qlens[runs], self.counts[runs]), np.repeat(self.kvlens[runs], self.counts[runs])

    def total(self, runs: Ints) -> Ints:
        """Sum a number per run over the runs of each point."""
        sums = np.concatenate(([0], np.cumsum(runs)))
        return np.asarray(sums[self.starts[1:]] - sums[self.starts[:-1]], dtype=np.int64)

    @property
    def sequences(self) -> Ints:
        return self.total(self.counts)

    @property
    def queries(self) -> Ints:
        return self.total(self.counts * self.qlens)

    def keys(self) -> Ints:
        """Return a hash of each batch, equal for equal batches."""
        position = np.arange(len(self.counts)) - np.repeat(self.starts[:-1], np.diff(self.starts))
        mixed = np.zeros(len(position), dtype=np.uint64)
        for part in (self.counts, self.qlens, self.kvlens, position):  # SplitMix64 of each part in turn
            mixed += part.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
        return self.total(mixed.view(np.int64))

    def take(self, points: Column) -> Self:
        """Return the batches of *points*, indices or a mask."""
        chosen = np.flatnonzero(points) if points.dtype == bool else points
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        runs = np.arange(starts[-1]) + np.repeat(self.starts[chosen] - starts[:-1], sizes)
        return type(self)(starts, self.counts[runs], self.qlens[runs], self.kvlens[runs])

    @classmethod
    def join(cls, parts: Sequence["PointBatches"]) -> "PointBatches":
        """Put the points of all *parts* one after the other."""
        before = np.cumsum([0, *(len(part.counts) for part in parts)])
        starts = [part.starts[:-1] + offset for part, offset in zip(parts, before[:-1], strict=True)]
        return cls(np.concatenate([*starts, before[-1:]]), np.concatenate([part.counts for part in parts]),
                   np.concatenate([part.qlens for part in parts]), np.concatenate([part.kvlens for part in parts]))
