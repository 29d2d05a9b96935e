"""Points are shapes of kernels to measure; measurements are the seconds that they took on one GPU.

The columns of a family have the names of the sweep format (`ksim.calibration.reading.sweep`).  All values are arrays
with one entry per point, so that a million points are a few arrays and no objects of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import numpy as np
from attrs import evolve, field, frozen

from ksim.calibration.batches import Column, Floats, Ints, PointBatches, Texts

#: The backend of a sweep; tables name a serving engine.
SWEEP = "sweep"
#: The value, in a column of whole numbers, of an entry that is missing or cannot be read.
MISSING = -1
#: Tags of points off the grids: they check a fit, and no fit uses them.
CHECKS = ("random", "mixed")


@frozen
class FamilyColumns:
    """The columns that a family needs, and those that it may have; `batched` families also have `PointBatches`."""

    needs: tuple[str, ...]
    may: tuple[str, ...] = ()
    batched: bool = False


_MESSAGE = FamilyColumns(("gpus", "bytes"))
#: Collectives, by their names in ksim and NCCL.
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send")
FAMILIES: Mapping[str, FamilyColumns] = {
    "gemm": FamilyColumns(("m", "n", "k")),
    "attention": FamilyColumns(("hq", "hkv", "d"), ("window",), batched=True),
    "mla": FamilyColumns(("hq",), ("tp",), batched=True),
    "moe": FamilyColumns(("t", "e", "topk", "h", "inter"), ("skew", "active", "max_load", "ep")),
    "rms_norm": FamilyColumns(("t", "h")),
    "fused_add_rms_norm": FamilyColumns(("t", "h")),
    "silu_mul": FamilyColumns(("t", "inter")),
    "rope": FamilyColumns(("t", "hq", "hkv", "d")),
    "kv_write": FamilyColumns(("t", "hkv", "d")),
    "argmax": FamilyColumns(("t", "vocab")),
    "quantize": FamilyColumns(("t", "h")),
    "copy": FamilyColumns(("bytes",)),
    **dict.fromkeys(COLLECTIVES, _MESSAGE),
}


@frozen(eq=False, kw_only=True)
class Points:
    """Shapes of kernels of one `family` in the number format `dtype`, which for attention is that of the KV cache."""

    family: str
    dtype: str
    columns: Mapping[str, Column]
    tags: Texts
    batches: PointBatches | None = None

    def __len__(self) -> int:
        return len(self.tags)

    def __getitem__(self, column: str) -> Column:
        return self.columns[column]

    def __str__(self) -> str:
        return f"{self.family} {self.dtype}"

    def take(self, points: Column) -> Self:
        """Return the chosen *points*, indices or a mask."""
        return evolve(self, columns={name: column[points] for name, column in self.columns.items()},
                      tags=self.tags[points], batches=self.batches.take(points) if self.batches else None)

    def shape(self) -> list[Column]:
        """Return arrays whose entries are equal for two points if, and only if, they have the same shape."""
        known = FAMILIES[self.family]
        outcomes = ("active", "max_load")  # these follow from the shape and from chance
        shape = [self.columns[name] for name in (*known.needs, *known.may)
                 if name in self.columns and name not in outcomes]
        return [*shape, self.batches.keys()] if self.batches else shape

    def shapes(self) -> list[tuple[object, ...]]:
        """Return a key for each point, equal for two points of one family, number format and shape."""
        return [(str(self), *shape) for shape in zip(*(column.tolist() for column in self.shape()), strict=True)]

    def describe(self, point: int) -> str:
        """Return the shape of one point, such as ``m=1 n=4096 k=4096``."""
        words = [f"{name}={column[point]}" for name, column in self.columns.items() if column[point] != MISSING]
        if self.batches:
            qlens, kvlens = self.batches.lengths(point)
            words.append(f"{len(qlens)} sequences, {qlens.sum()} new tokens, {kvlens.sum()} in the cache")
        return " ".join(words)


@frozen
class Source:
    """The source of measurements.

    `device` is the GPU as the file names it.  `unit` is that of row numbers: lines
    of a text from 1, rows of a table from 0.
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
        """Whether the rows are a sweep's, and not those of a table filled by the collectors of a serving engine."""
        return self.backend == SWEEP

    def at(self, rows: Sequence[int] | Ints) -> str:
        """Name the file, a few of *rows*, and their number."""
        return f"{self.file}, {listed(rows, self.unit)}"


@frozen(eq=False, kw_only=True)
class Measurements(Points):
    """The `seconds` that points took on `gpu`, a name of the catalogue; None if it has no such GPU.

    `rows` are the row numbers in the file.
    """

    seconds: Floats
    rows: Ints
    source: Source
    gpu: str | None = field(default=None)

    def take(self, points: Column) -> Self:
        chosen = super().take(points)
        return evolve(chosen, seconds=self.seconds[points], rows=self.rows[points])

    def at(self, points: Column) -> str:
        """Return where in the file the chosen *points* are."""
        return self.source.at(self.rows[points])


def joined(parts: Sequence[Measurements]) -> Measurements:
    """Join *parts* of one family, number format and GPU, with the columns that all of them have.

    The source is that of the first part, so remarks that name rows must be made before.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    shared = [name for name in first.columns if all(name in part.columns for part in parts)]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in shared}
    batches = [part.batches for part in parts if part.batches is not None]
    return evolve(first, columns=columns, tags=np.concatenate([part.tags for part in parts]),
                  batches=PointBatches.join(batches) if batches else None,
                  seconds=np.concatenate([part.seconds for part in parts]),
                  rows=np.concatenate([part.rows for part in parts]))


def listed(rows: Sequence[int] | Sequence[str] | Ints, unit: str = "row", most: int = 5) -> str:
    """Name at most *most* rows, and their number: ``rows 3, 5, 8 ... (12 in all)``."""
    shown = ", ".join(str(row) for row in rows[:most])
    more = f" ... ({len(rows):,} in all)" if len(rows) > most else ""
    return f"{unit}{'s' if len(rows) != 1 else ''} {shown}{more}"


def tagged(tag: str, count: int) -> Texts:
    return np.full(count, tag)


def by_family(points: Sequence[Points]) -> Iterator[tuple[str, list[Points]]]:
    """Yield each family, in order of appearance, with its points of every number format."""
    families: dict[str, list[Points]] = {}
    for part in points:
        families.setdefault(part.family, []).append(part)
    yield from families.items()
