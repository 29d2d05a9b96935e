"""Public tables of kernels with the mean power of the board: rows as counts of actions, and the metered watts.

The columns are those of `reading.tables`, and `power_w`; all kinds of kernels are in one table, and `op` names the
kind.  Collectors run a kernel over and over on the same buffers, so data that fits the L2 cache is read from there.

They read NVML's power every 100 ms for 0.3 to 1 s or longer (AIConfigurator, collector/helper.py).  Each reading is a
mean over about the second before it, which includes the time when buffers were set up and the GPU was idle.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from benchmarks.research.energy.prediction import joules_of, terms
from ksim.calibration.batches import Floats
from ksim.calibration.bounds import formats
from ksim.calibration.checks import gpu_of
from ksim.calibration.kernels import balanced, fused, kernels, power_law
from ksim.calibration.measurements import Points
from ksim.calibration.reading import tables
from ksim.calibration.reading.frames import Frame, column_names, load
from ksim.calibration.regression import weighted_median
from ksim.compute.expert_rows import ExpertRows
from ksim.compute.kernels import Kernel
from ksim.cost.energy import RESIDENT, Actions, actions
from ksim.foundation.catalog import entries
from ksim.foundation.errors import DataError
from ksim.specs.hardware import Gpu, Power

NEEDED = ("gpu", "op", "dtype", "latency_us", "power_w")
_ATTENTION = ("kv_dtype", "batch", "isl", "step", "num_heads", "num_kv_heads", "head_dim", "window")
#: The columns of the shape, by kind of kernel.
SHAPES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"), "attention_context": _ATTENTION, "attention_generation": _ATTENTION,
    "moe": ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep", "distribution")}
#: One shape in this many is held out of every fit.
HELD_OUT = 5
#: `reading.tables` refuses a column power_w, so it is renamed.
_WATTS, _DRAW = "watts", "draw"
#: Classes of launch times per factor of ten: how long a kernel is measured depends on its time.
CLASSES = 2
#: The fewest rows of a class that a share is fitted to.
FEWEST = 20
#: Layers of weights that take turns in the collector of GEMMs, by number format; one in other formats.
LAYERS = {"bf16": 6, "fp8": 6}


@frozen(eq=False)
class Readings:
    """Rows of one GPU, kind of kernel, kernel and number format, as arrays.

    `counts` has a column for each of `sustained.TERMS`, per launch of `seconds`.
    `watts` is the power of the board.  `held_out` marks the rows that no fit may use.
    """

    gpu: str
    op: str
    dtype: str
    counts: Floats
    seconds: Floats
    watts: Floats
    held_out: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.seconds)


def recognises(path: Path) -> bool:
    """Return whether *path* is a table of kernels with the power of boards."""
    return path.suffix in (".parquet", ".csv") and "power_w" in column_names(path)


def read(path: Path, limit: int = 0) -> list[Readings]:
    """Read the table at *path*, or about *limit* rows of it, drawn by the hashes of their shapes.

    Raises DataError for a table that lacks columns or rows, for GPUs, kernels and number formats that ksim lacks, and
    for figures that are not positive.
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
    """Add a number from 0 to 1 to *rows* of one kind, from the hash of the shape: equal shapes have equal numbers."""
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
        part = rows.take(np.searchsorted(rows.places, measured.rows))
        # Other digits of the number than those that a limit depends on.
        held_out = np.floor(part.numbers(_DRAW) * 2**24) % HELD_OUT == 0
        counted = counts(measured, measured.seconds, gpu_of(measured))
        yield Readings(measured.gpu, op, measured.dtype, counted, measured.seconds, part.numbers(_WATTS), held_out)


def _as_table(op: str, rows: Frame) -> Frame:
    """Rename the lengths of attention to those of `reading.tables`."""
    if op == "attention_context":
        return rows.renamed({"step": "prefix"})
    if op == "attention_generation":
        return rows.having("kv_len", rows.whole("isl") + rows.whole("step"))
    return rows


def counts(points: Points, seconds: Floats, gpu: Gpu) -> Floats:
    """Count `sustained.TERMS` in a launch of each of *points*, which takes *seconds* on *gpu*.

    Raises DataError for a number format that *gpu* does not compute in.
    """
    if (element := formats(points)[1].element) not in gpu.flops:
        raise DataError(str(points), f"{gpu.name} does not compute in {element}")
    return np.array([terms(_actions(points, i, float(seconds[i]), gpu), gpu) for i in range(len(points))])


def _actions(points: Points, point: int, seconds: float, gpu: Gpu) -> list[Actions]:
    launched = _experts(points, point) if points.family == "moe" else kernels(points, point)
    cached = _touched(points, point, launched) < RESIDENT * gpu.l2
    by_kernel = [actions(kernel, seconds / len(launched), gpu) for kernel in launched]
    return [evolve(counted, hbm=0.0, written=0.0) for counted in by_kernel] if cached else by_kernel


def _touched(points: Points, point: int, launched: list[Kernel]) -> float:
    """Return the bytes moved from one use of a buffer to the next."""
    moved = sum(kernel.work.bytes for kernel in launched)
    if points.family != "gemm":
        return moved
    weights = float(points["n"][point]) * float(points["k"][point]) * formats(points)[0].bytes
    return moved + (LAYERS.get(points.dtype, 1) - 1) * weights


def _experts(points: Points, point: int) -> list[Kernel]:
    """Return the fused kernels of one rank's experts; a row of an expert layer is one rank's whole module."""
    tokens, experts, top, hidden, inter, ranks = (
        int(points[name][point]) for name in ("t", "e", "topk", "h", "inter", "ep"))
    spread = _spread(tokens, top, experts, ranks, float(points["skew"][point]))
    return fused(spread, tokens, hidden, inter, formats(points))


@cache
def _spread(tokens: int, top_k: int, experts: int, ranks: int, skew: float) -> ExpertRows:
    drawn = power_law(tokens, top_k, experts, ranks, skew, 0) if skew else balanced(tokens, top_k, experts, ranks)
    rows, count = np.unique(drawn[drawn > 0], return_counts=True)
    return tuple(zip(rows.tolist(), count.tolist(), strict=True)) or ((1, 1),)


def model_watts(readings: Readings, power: Power) -> Floats:
    """Return the mean power of each launch by the power model, at its measured time."""
    dynamic = readings.counts @ joules_of(power) / readings.seconds
    return np.minimum(power.limit, power.idle + dynamic)


def metered_watts(readings: Readings, power: Power) -> Floats:
    """Return the power that the meter shows: idle power, and a share of what a launch draws beyond it.

    Launches of similar times have the same share.  It has the least sum of relative errors over the rows that are not
    held out.
    """
    watts = model_watts(readings, power)
    classes = np.floor(CLASSES * np.log10(readings.seconds))
    shares = np.ones(len(readings))
    for time_class in np.unique(classes):
        members = classes == time_class
        fitted = members & ~readings.held_out
        if np.count_nonzero(fitted) >= FEWEST:
            shares[members] = _share(readings.watts[fitted], watts[fitted], power.idle)
    return np.minimum(power.limit, power.idle + shares * (watts - power.idle))


def _share(metered: Floats, watts: Floats, idle: float) -> float:
    """Return the weighted median of (metered - idle) / (drawn - idle): it has the least sum of relative errors."""
    beyond = np.maximum(watts - idle, 1e-9)
    return weighted_median((metered - idle) / beyond, beyond / metered)
