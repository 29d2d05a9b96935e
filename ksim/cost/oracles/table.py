"""Measured points: kernels whose time a file lists, and between them the efficiency of their neighbours.

The file is CSV with a header.  Every row has `family` and `latency_us`, and the
shape by the columns of its family:

    gemm        m, n, k, and dtype where it is not bf16
    attention   heads, kv_heads, head_dim, and the batch as decode ("64x1024") and prefill ("512+0")
    any other   bytes moved
"""

import csv
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from attrs import define, field, frozen

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.cost.oracles import Estimate
from ksim.cost.oracles.waves import Waves
from ksim.flow.batch import Batch
from ksim.foundation.errors import DataError
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu

__all__ = ["Table"]

#: How many of the nearest points answer for a shape between them.
NEIGHBOURS = 4


@frozen
class Point:
    kernel: Kernel
    seconds: float
    place: tuple[float, ...]


@define(slots=False)
class Table:
    """`path` is the file; between its points, measured time over `waves` time is interpolated in log shape.

    A shape outside the range of its family's points takes the efficiency of the
    nearest, and its source says "extrapolated"; of a family without points,
    nothing is known but `waves`, and the source says that.
    """

    path: Path
    waves: Waves = field(factory=Waves)

    def seconds(self, kernel: Kernel, gpu: Gpu) -> float:
        return self.estimate(kernel, gpu).seconds

    def estimate(self, kernel: Kernel, gpu: Gpu) -> Estimate:
        base = self.waves.estimate(kernel, gpu)
        points = self.points.get(_group(kernel), [])
        if not points:
            return base
        place = _place(kernel)
        nearest = sorted((math.dist(place, point.place), i) for i, point in enumerate(points))[:NEIGHBOURS]
        if nearest[0][0] == 0:
            return self._answer(base, points[nearest[0][1]].seconds, "measured")
        outside = any(not min(axis) <= x <= max(axis)
                      for x, axis in zip(place, zip(*(point.place for point in points), strict=True), strict=True))
        if outside:
            nearest = nearest[:1]
        weights = [1 / distance**2 for distance, _ in nearest]
        logs = [math.log(points[i].seconds / self.waves.seconds(points[i].kernel, gpu)) for _, i in nearest]
        log = sum(w * x for w, x in zip(weights, logs, strict=True)) / sum(weights)
        return self._answer(base, base.seconds * math.exp(log), "extrapolated" if outside else "interpolated")

    def _answer(self, base: Estimate, seconds: float, how: str) -> Estimate:
        return Estimate(seconds, base.bound, base.waves, base.idle, base.launch, f"{self.path.name}, {how}")

    @cached_property
    def points(self) -> Mapping[tuple[str, ...], list[Point]]:
        """The file's points by family and number formats; raises DataError that names the file and line."""
        groups: dict[tuple[str, ...], list[Point]] = {}
        try:
            with self.path.open(newline="", encoding="utf-8-sig") as file:
                rows = csv.DictReader(file)
                for row in rows:
                    point = _point(row, f"{self.path}:{rows.line_num}")
                    groups.setdefault(_group(point.kernel), []).append(point)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(str(self.path), f"cannot be read: {error}") from None
        if not groups:
            raise DataError(str(self.path), "has no points; expected a header with family and latency_us, and rows")
        return groups


def _point(row: Mapping[str, str], where: str) -> Point:
    """What a row of the file says; raises DataError that names *where*."""
    try:
        kernel, seconds = _kernel(row), _number(row, "latency_us") * 1e-6
    except KeyError as error:
        raise DataError(where, f"has no column {error}") from None
    except ValueError as error:
        raise DataError(where, f"is not a measured point: {error}") from None
    return Point(kernel, seconds, _place(kernel))


def _kernel(row: Mapping[str, str]) -> Kernel:
    """The kernel that a row of the file measured."""
    family = row["family"]
    if family == "gemm":
        dtype = DType.named(row.get("dtype") or "bf16")
        return Gemm(_count(row, "m"), _count(row, "n"), _count(row, "k"), dtype, dtype)
    if family == "attention":
        layer = AttentionLayer(_count(row, "heads"), _count(row, "kv_heads"), _count(row, "head_dim"))
        if layer.heads % layer.kv_heads:
            raise ValueError(f"{layer.heads} heads do not share {layer.kv_heads} kv_heads evenly")
        return layer.over(Batch.parse(row.get("decode") or "", row.get("prefill") or ""))
    return Pointwise(family, _number(row, "bytes"), 0.0, 0.0, 1)


def _count(row: Mapping[str, str], column: str) -> int:
    text = (row[column] or "").strip()
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{column} = {text!r} is not a positive whole number")
    return int(text)


def _number(row: Mapping[str, str], column: str) -> float:
    text = (row[column] or "").strip()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{column} = {text!r} is not a positive number")
    return number


def _group(kernel: Kernel) -> tuple[str, ...]:
    """What must be equal for one measured point to say something of another kernel."""
    if isinstance(kernel, Gemm):
        return kernel.family, kernel.weights.label, kernel.activations.label
    return (kernel.family,)


def _place(kernel: Kernel) -> tuple[float, ...]:
    """Where a kernel lies among others of its group: logarithms of its shape."""
    if isinstance(kernel, Gemm):
        shape: tuple[float, ...] = (kernel.m, kernel.n, kernel.k)
    elif kernel.family == "attention":
        work = kernel.work
        shape = (work.flops, work.reads, work.writes)
    else:
        shape = (kernel.work.bytes,)
    return tuple(math.log(x) for x in shape)
