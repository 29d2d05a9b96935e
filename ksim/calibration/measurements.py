"""Points: shapes of kernels to measure; and measurements: the seconds that they took on one GPU.

A family's columns have the names of the sweep format (`ksim.calibration.reading.sweep`).  All are
arrays, one entry a point, so that a million of them are a few arrays and no objects of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Texts = NDArray[np.str_]
Column = NDArray[Any]

#: What a sweep calls itself where tables name a serving engine.
SWEEP = "sweep"
#: What a column of whole numbers holds where a file has none, or none that can be read.
MISSING = -1
#: Tags of points that lie off the grids: to check a fit with, never to fit on.
CHECKS = ("random", "mixed")


@frozen
class Family:
    """The columns that a family needs, and those that it may have; `batched` families have `Batches` too."""

    needs: tuple[str, ...]
    may: tuple[str, ...] = ()
    batched: bool = False


_MESSAGE = Family(("gpus", "bytes"))
#: Messages between GPUs, by their names in ksim and in NCCL.
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send")
FAMILIES: Mapping[str, Family] = {
    "gemm": Family(("m", "n", "k")),
    "attention": Family(("hq", "hkv", "d"), ("window",), batched=True),
    "mla": Family(("hq",), ("tp",), batched=True),
    "moe": Family(("t", "e", "topk", "h", "inter"), ("skew", "active", "max_load", "ep")),
    "rms_norm": Family(("t", "h")),
    "fused_add_rms_norm": Family(("t", "h")),
    "silu_mul": Family(("t", "inter")),
    "rope": Family(("t", "hq", "hkv", "d")),
    "kv_write": Family(("t", "hkv", "d")),
    "argmax": Family(("t", "vocab")),
    "quantize": Family(("t", "h")),
    "copy": Family(("bytes",)),
    **dict.fromkeys(COLLECTIVES, _MESSAGE),
}


@frozen(eq=False)
class Batches:
    """For each point the sequences that attend, as runs of equal ones: the runs of point i are starts[i]:starts[i + 1].

    A run has `counts` sequences of `qlens` new tokens each, and of `kvlens` in the cache, the new ones among them.
    """

    starts: Ints
    counts: Ints
    qlens: Ints
    kvlens: Ints

    @classmethod
    def uniform(cls, counts: Ints, qlens: Ints, kvlens: Ints) -> Self:
        """One run a point."""
        return cls(np.arange(len(counts) + 1, dtype=np.int64), counts, qlens, kvlens)

    @classmethod
    def flat(cls, starts: Ints, qlens: Ints, kvlens: Ints) -> Self:
        """One entry a sequence; those of point i are starts[i]:starts[i + 1]."""
        fresh = np.ones(len(qlens), dtype=bool)
        fresh[1:] = (qlens[1:] != qlens[:-1]) | (kvlens[1:] != kvlens[:-1])
        fresh[starts[:-1][starts[:-1] < len(qlens)]] = True
        heads = np.flatnonzero(fresh)
        runs_before = np.concatenate(([0], np.cumsum(fresh)))
        return cls(runs_before[starts], np.diff(heads, append=len(qlens)), qlens[heads], kvlens[heads])

    @classmethod
    def of(cls, *batches: Sequence[tuple[int, int]]) -> Self:
        """Of sequences as (new tokens, tokens in the cache)."""
        pairs = np.array([pair for batch in batches for pair in batch], dtype=np.int64).reshape(-1, 2)
        starts = np.cumsum([0, *map(len, batches)], dtype=np.int64)
        return cls.flat(starts, pairs[:, 0], pairs[:, 1])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def lengths(self, point: int) -> tuple[Ints, Ints]:
        """The qlens and kvlens of one point, one entry a sequence."""
        runs = slice(self.starts[point], self.starts[point + 1])
        return np.repeat(self.qlens[runs], self.counts[runs]), np.repeat(self.kvlens[runs], self.counts[runs])

    def total(self, runs: Ints) -> Ints:
        """Sum a number for each run over the runs of each point."""
        sums = np.concatenate(([0], np.cumsum(runs)))
        return np.asarray(sums[self.starts[1:]] - sums[self.starts[:-1]], dtype=np.int64)

    @property
    def sequences(self) -> Ints:
        return self.total(self.counts)

    @property
    def queries(self) -> Ints:
        return self.total(self.counts * self.qlens)

    def keys(self) -> Ints:
        """A number that tells batches of different runs apart; equal for equal batches."""
        place = np.arange(len(self.counts)) - np.repeat(self.starts[:-1], np.diff(self.starts))
        mixed = np.zeros(len(place), dtype=np.uint64)
        for part in (self.counts, self.qlens, self.kvlens, place):  # SplitMix64 of each in turn
            mixed += part.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
        return self.total(mixed.view(np.int64))

    def take(self, points: Column) -> Self:
        """The batches of *points*, indices or a mask."""
        chosen = np.flatnonzero(points) if points.dtype == bool else points
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        runs = np.arange(starts[-1]) + np.repeat(self.starts[chosen] - starts[:-1], sizes)
        return type(self)(starts, self.counts[runs], self.qlens[runs], self.kvlens[runs])

    @classmethod
    def join(cls, parts: Sequence["Batches"]) -> "Batches":
        before = np.cumsum([0, *(len(part.counts) for part in parts)])
        starts = [part.starts[:-1] + offset for part, offset in zip(parts, before[:-1], strict=True)]
        return cls(np.concatenate([*starts, before[-1:]]), np.concatenate([part.counts for part in parts]),
                   np.concatenate([part.qlens for part in parts]), np.concatenate([part.kvlens for part in parts]))


@frozen(eq=False, kw_only=True)
class Points:
    """Shapes of kernels of one `family`, computed in the number format `dtype`; of attention, that of the KV cache."""

    family: str
    dtype: str
    columns: Mapping[str, Column]
    tags: Texts
    batches: Batches | None = None

    def __len__(self) -> int:
        return len(self.tags)

    def __getitem__(self, column: str) -> Column:
        return self.columns[column]

    def __str__(self) -> str:
        return f"{self.family} {self.dtype}"

    def take(self, points: Column) -> Self:
        """The chosen *points*, indices or a mask."""
        return evolve(self, columns={name: column[points] for name, column in self.columns.items()},
                      tags=self.tags[points], batches=self.batches.take(points) if self.batches else None)

    def shape(self) -> list[Column]:
        """Arrays that are equal in two places only where two points are of one shape."""
        known = FAMILIES[self.family]
        outcomes = ("active", "max_load")  # follow from the shape and from chance
        shape = [self.columns[name] for name in (*known.needs, *known.may)
                 if name in self.columns and name not in outcomes]
        return [*shape, self.batches.keys()] if self.batches else shape

    def describe(self, point: int) -> str:
        """The shape of one point, such as ``m=1 n=4096 k=4096``."""
        words = [f"{name}={column[point]}" for name, column in self.columns.items() if column[point] != MISSING]
        if self.batches:
            qlens, kvlens = self.batches.lengths(point)
            words.append(f"{len(qlens)} sequences, {qlens.sum()} new tokens, {kvlens.sum()} in the cache")
        return " ".join(words)


@frozen
class Source:
    """Where measurements come from.

    `device` is the GPU as the file calls it.  `unit` is what the file's rows are
    counted in: lines of a text from 1, rows of a table from 0.
    """

    file: str
    backend: str = ""
    version: str = ""
    kernel: str = ""
    timing: str = ""
    device: str = ""
    unit: str = "row"

    @property
    def swept(self) -> bool:
        """Whether the rows are a sweep's, and not of a table that a serving engine's collectors filled."""
        return self.backend == SWEEP

    def at(self, rows: Sequence[int] | Ints) -> str:
        """Name the file and a handful of *rows*, and say how many there are."""
        return f"{self.file}, {listed(rows, self.unit)}"


@frozen(eq=False, kw_only=True)
class Measurements(Points):
    """What `seconds` the points took on `gpu`, a name of the catalogue, or None where it has no such GPU.

    `rows` is where each stands in the file.
    """

    seconds: Floats
    rows: Ints
    source: Source
    gpu: str | None = field(default=None)

    def take(self, points: Column) -> Self:
        chosen = super().take(points)
        return evolve(chosen, seconds=self.seconds[points], rows=self.rows[points])

    def at(self, points: Column) -> str:
        """Where in the file the chosen *points* are."""
        return self.source.at(self.rows[points])


def joined(parts: Sequence[Measurements]) -> Measurements:
    """*parts* of one family, number format and GPU as one, with the columns that all of them have.

    The source is the first one's: what is said of rows must be said before.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    shared = [name for name in first.columns if all(name in part.columns for part in parts)]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in shared}
    batches = [part.batches for part in parts if part.batches is not None]
    return evolve(first, columns=columns, tags=np.concatenate([part.tags for part in parts]),
                  batches=Batches.join(batches) if batches else None,
                  seconds=np.concatenate([part.seconds for part in parts]),
                  rows=np.concatenate([part.rows for part in parts]))


def listed(rows: Sequence[int] | Sequence[str] | Ints, unit: str = "row", most: int = 5) -> str:
    """Name at most *most* rows, and say how many there are in all: ``rows 3, 5, 8 ... (12 in all)``."""
    shown = ", ".join(str(row) for row in rows[:most])
    more = f" ... ({len(rows):,} in all)" if len(rows) > most else ""
    return f"{unit}{'s' if len(rows) != 1 else ''} {shown}{more}"


def tagged(tag: str, count: int) -> Texts:
    return np.full(count, tag)


def by_family(points: Sequence[Points]) -> Iterator[tuple[str, list[Points]]]:
    """Each family, in order of first appearance, with its points of every number format."""
    families: dict[str, list[Points]] = {}
    for part in points:
        families.setdefault(part.family, []).append(part)
    yield from families.items()
