"""How a kernel is timed: a CUDA graph of some launches of it over buffers that rotate, replayed a few times."""

from math import ceil

import numpy as np

from ksim.calibration.bounds import formats
from ksim.calibration.measurements import Floats, Points
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu

#: Seconds of launches that a graph is to hold, and the bounds of how many launches that may be.
BUSY, FEWEST_LAUNCHES, MOST_LAUNCHES = 2e-3, 3, 200
#: Replays of the graph: before those that count, and those of which the median counts.
WARM_UPS, REPLAYS = 1, 5
#: Launches that tell how many the graph should hold, and seconds that allocating, filling and capturing take.
PILOT, SETUP = 3, 0.02
#: How many times the L2 cache the buffers of a graph's launches fill, and the share of a GPU's memory they may.
ROTATION, MEMORY_SHARE = 2.0, 0.8


def launches(seconds: float) -> int:
    """How many launches of a kernel that takes *seconds* a graph holds."""
    return min(MOST_LAUNCHES, max(FEWEST_LAUNCHES, round(BUSY / seconds)))


def copies(buffers: float, l2: float) -> int:
    """How many sets of buffers, of so many bytes each, rotate, so that none finds itself in an L2 cache of *l2*."""
    return min(MOST_LAUNCHES, max(1, ceil(ROTATION * l2 / max(buffers, 1.0))))


def cost(seconds: float) -> float:
    """Seconds that it takes to time a kernel that takes *seconds*."""
    return SETUP + (2 * PILOT + (WARM_UPS + REPLAYS) * launches(seconds)) * seconds


def buffers(points: Points) -> Floats:
    """Bytes of the tensors that one launch of each of *points* reads and writes; of a mixture, all experts'."""
    weights, activations = (dtype.bytes for dtype in formats(points))
    of = {name: column.astype(np.float64) for name, column in points.columns.items()}
    number = DType.BF16.bytes
    match points.family:
        case "gemm":
            m, n, k = of["m"], of["n"], of["k"]
            return np.asarray(weights * n * k + activations * m * k + number * m * n)
        case "attention":
            assert points.batches is not None
            cached = points.batches.total(points.batches.counts * points.batches.kvlens)
            queries = points.batches.queries
            return np.asarray(2 * number * queries * of["hq"] * of["d"] + 2 * weights * cached * of["hkv"] * of["d"])
        case "moe":
            rows = of["t"] * (2 * of["h"] + of["topk"] * (3 * of["inter"] + of["h"]))
            return np.asarray(3 * weights * of["e"] * of["h"] * of["inter"] + number * rows)
        case "copy":
            return np.asarray(2 * of["bytes"])
    rows = of["t"]
    width = {"rms_norm": 2, "fused_add_rms_norm": 2, "quantize": 1.5}.get(points.family, 0.0) * of.get("h", rows)
    width = width + 3 * of.get("inter", 0.0) + 2 * of.get("vocab", 0.0)
    if "d" in of:
        width = width + (of.get("hq", 0.0) + (4 if points.family == "kv_write" else 1) * of["hkv"]) * of["d"]
    return np.asarray(number * rows * width)


def fits(points: Points, gpu: Gpu) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of *points* find room on *gpu*, their buffers in as many copies as rotate."""
    sizes = buffers(points)
    return np.array([size * copies(size, gpu.l2) <= MEMORY_SHARE * gpu.memory for size in sizes], dtype=bool)
