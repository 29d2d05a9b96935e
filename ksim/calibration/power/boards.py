"""TODO"""

from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ksim.calibration.bounds import formats
from ksim.calibration.checks import gpu_of
from ksim.calibration.kernels import balanced, fused, kernels, power_law
from ksim.calibration.measurements import Floats, Points
from ksim.calibration.power.sustained import terms
from ksim.calibration.reading import tables
from ksim.calibration.reading.frames import Frame, column_names, load
from ksim.compute.kernels import Kernel
from ksim.compute.loads import Loads
from ksim.cost.energy import RESIDENT, Actions, actions
from ksim.foundation.catalog import entries
from ksim.foundation.errors import DataError
from ksim.specs.hardware import Gpu

#: How many layers of a GEMM take turns in the collector, by number format; in others it is one.
LAYERS = {"bf16": 6, "fp8": 6}


def counts(points: Points, seconds: Floats, gpu: Gpu) -> Floats:
    """How often `fitting.TERMS` happen in a launch of each of *points*, which takes *seconds* on *gpu*.

    Raises DataError for a number format that *gpu* does not compute in.
    """
    if (element := formats(points)[1].element) not in gpu.flops:
        raise DataError(str(points), f"{gpu.name} does not compute in {element}")
    return np.array([terms(_done(points, i, float(seconds[i]), gpu), gpu) for i in range(len(points))])


def _done(points: Points, point: int, seconds: float, gpu: Gpu) -> list[Actions]:
    launched = _experts(points, point) if points.family == "moe" else kernels(points, point)
    cached = _touched(points, point, launched) < RESIDENT * gpu.l2
    each = [actions(kernel, seconds / len(launched), gpu) for kernel in launched]
    return [evolve(done, hbm=0.0, written=0.0) for done in each] if cached else each


def _touched(points: Points, point: int, launched: list[Kernel]) -> float:
    """Bytes from one use of a buffer to its next."""
    moved = sum(kernel.work.bytes for kernel in launched)
    if points.family != "gemm":
        return moved
    weights = float(points["n"][point]) * float(points["k"][point]) * formats(points)[0].bytes
    return moved + (LAYERS.get(points.dtype, 1) - 1) * weights


def _experts(points: Points, point: int) -> list[Kernel]:
    """The fused kernels of one rank's experts."""
    tokens, experts, top, hidden, inter, ranks = (
        int(points[name][point]) for name in ("t", "e", "topk", "h", "inter", "ep"))
    spread = _spread(tokens, top, experts, ranks, float(points["skew"][point]))
    return fused(spread, tokens, hidden, inter, formats(points))


@cache
def _spread(tokens: int, top_k: int, experts: int, ranks: int, skew: float) -> Loads:
    drawn = power_law(tokens, top_k, experts, ranks, skew, 0) if skew else balanced(tokens, top_k, experts, ranks)
    rows, count = np.unique(drawn[drawn > 0], return_counts=True)
    return tuple(zip(rows.tolist(), count.tolist(), strict=True)) or ((1, 1),)


NEEDED = ("gpu", "op", "dtype", "latency_us", "power_w")
_ATTENTION = ("kv_dtype", "batch", "isl", "step", "num_heads", "num_kv_heads", "head_dim", "window")
#: Columns that make up the shape of each kind of kernel.
SHAPES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"), "attention_context": _ATTENTION, "attention_generation": _ATTENTION,
    "moe": ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep", "distribution")}
#: One shape in so many teaches nothing and chooses nothing.
HELD_BACK = 5
#: `reading.tables` leaves rows with power alone, so their column goes by another name there.
_WATTS, _DRAW = "watts", "draw"


@frozen(eq=False)
class Readings:
    """Rows of one GPU, kind of kernel, kernel and number format, as arrays.

    `counts` has a column for each of `fitting.TERMS` in a launch of `seconds`, `watts` is what the board drew.  `held`
    marks rows that must teach nothing.
    """

    gpu: str
    op: str
    dtype: str
    counts: Floats
    seconds: Floats
    watts: Floats
    held: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.seconds)


def recognises(path: Path) -> bool:
    """Whether *path* is a table of kernels with the power of boards."""
    return path.suffix in (".parquet", ".csv") and "power_w" in column_names(path)


def read(path: Path, limit: int = 0) -> list[Readings]:
    """Read the table at *path*, or about *limit* rows of it, drawn by the hashes of their shapes.

    Raises DataError for a table that lacks columns or has no rows, for GPUs, kernels and number formats that ksim
    lacks, and for figures that are not positive.
    """
    frame = _checked(load(path))
    drawn = [_drawn(op, frame.where("op", op)) for op in SHAPES]
    if limit:
        draws = np.sort(np.concatenate([rows.numbers(_DRAW) for rows in drawn]))
        drawn = [rows.take(rows.numbers(_DRAW) <= draws[min(limit, len(frame)) - 1]) for rows in drawn]
    return [reading for op, rows in zip(SHAPES, drawn, strict=True) if len(rows) for reading in _readings(op, rows)]


def _checked(frame: Frame) -> Frame:
    if missing := [name for name in NEEDED if name not in frame]:
        raise DataError(str(frame.path), f"has no column {' and no '.join(map(repr, missing))}; a table of kernels with"
                                         f" the power of boards has {', '.join(NEEDED)} and columns of shapes")
    if not len(frame):
        raise DataError(str(frame.path), "has no rows")
    if unknown := {*frame.texts("op").tolist()} - SHAPES.keys():
        raise DataError(str(frame.path), f"no kind of kernel is called {min(unknown)!r} ({', '.join(SHAPES)})")
    for name in NEEDED[3:]:
        if (bad := np.flatnonzero(~(frame.numbers(name) > 0))).size:
            raise DataError(str(frame.path), f"{frame.unit} {frame.places[bad[0]]}: {name} is"
                                             f" {frame.numbers(name)[bad[0]]}, and must be positive")
    return frame.renamed({"power_w": _WATTS})


def _drawn(op: str, rows: Frame) -> Frame:
    """*rows* of one kind with a number below 1 each, from the hash of its shape: equal shapes draw the same."""
    if missing := [name for name in SHAPES[op] if len(rows) and name not in rows]:
        raise DataError(str(rows.path), f"has no column {missing[0]!r}, which {op} needs")
    shapes = [rows.texts(name) for name in ("dtype", *SHAPES[op])] if len(rows) else []
    draws = [int.from_bytes(sha256(" ".join((op, *shape)).encode()).digest()[:6]) / 2**48
             for shape in zip(*shapes, strict=True)]
    return rows.having(_DRAW, np.array(draws, dtype=np.float64))


def _readings(op: str, rows: Frame) -> Iterator[Readings]:
    for measured in tables.measurements(_as_table(op, rows), op.partition("_")[0]):
        if measured.gpu is None:
            raise DataError(str(rows.path), f"has rows of {measured.source.device!r}, a GPU that the catalogue lacks"
                                            f" ({', '.join(entries('gpus'))})")
        own = rows.take(np.searchsorted(rows.places, measured.rows))
        draws = own.numbers(_DRAW)
        # Another digit of the draw than the one that a limit goes by.
        held = np.floor(draws * 2**24) % HELD_BACK == 0
        counted = counts(measured, measured.seconds, gpu_of(measured))
        yield Readings(measured.gpu, op, measured.dtype, counted, measured.seconds, own.numbers(_WATTS), held)


def _as_table(op: str, rows: Frame) -> Frame:
    """*rows* with the lengths of attention as `reading.tables` knows them."""
    if op == "attention_context":
        return rows.renamed({"step": "prefix"})
    if op == "attention_generation":
        return rows.having("kv_len", rows.whole("isl") + rows.whole("step"))
    return rows
