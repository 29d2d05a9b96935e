"""A sweep over a GPU: which kernels to measure within a budget of GPU time, and the measuring itself.

A kernel is timed as a CUDA graph of several launches over rotating buffers, which is replayed a few times.  Points are
timed one by one, and each family has a file, which is written as soon as the family is done.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from math import ceil
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import frozen

from ksim.calibration.batches import Floats, Ints
from ksim.calibration.bounds import formats
from ksim.calibration.checks import FEWEST
from ksim.calibration.grids import GRIDS, Layers
from ksim.calibration.kernels import seconds
from ksim.calibration.measurements import CHECKS, Points, by_family
from ksim.calibration.reading import sweep as sweep_format
from ksim.calibration.reading.frames import load
from ksim.calibration.reading.sweep import save, table, write_points
from ksim.calibration.runner.device import Device, MeasurementPoint, TorchDevice, Unmeasurable, expert_loads
from ksim.compute.model import Model
from ksim.foundation.errors import ConfigError, UnknownName
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu

#: Seconds of launches in a graph, and the fewest and the most launches.
BUSY, FEWEST_LAUNCHES, MOST_LAUNCHES = 2e-3, 3, 200
#: Replays of the graph: those before timing, and those whose median counts.
WARM_UPS, REPLAYS = 1, 5
#: Launches of the pilot graph, from whose time follow those of the real one; and seconds to allocate, fill and capture.
PILOT, SETUP = 3, 0.02
#: The buffers of a graph fill the L2 cache this many times, but at most this share of the GPU's memory.
ROTATION, MEMORY_SHARE = 2.0, 0.8


def launches(seconds: float) -> int:
    """Return how many launches of a kernel of *seconds* a graph holds."""
    return min(MOST_LAUNCHES, max(FEWEST_LAUNCHES, round(BUSY / seconds)))


def copies(buffers: float, l2: float) -> int:
    """Return how many sets of buffers rotate, each of *buffers* bytes, so that none is still in an L2 cache of *l2*."""
    return min(MOST_LAUNCHES, max(1, ceil(ROTATION * l2 / max(buffers, 1.0))))


def cost(seconds: float) -> float:
    """Return the GPU time that it takes to time a kernel of *seconds*."""
    return SETUP + (2 * PILOT + (WARM_UPS + REPLAYS) * launches(seconds)) * seconds


def buffers(points: Points) -> Floats:
    """Return the bytes of the tensors of one launch of each of *points*; of an expert layer, those of all experts."""
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
    """Return which of *points* fit the memory of *gpu*, with all copies of their buffers."""
    sizes = buffers(points)
    return np.array([size * copies(size, gpu.l2) <= MEMORY_SHARE * gpu.memory for size in sizes], dtype=bool)


#: Seconds of GPU time for a sweep, and for one kernel.
BUDGET, LONGEST = 300.0, 0.025
#: The largest budget, in seconds: 11 days.
_MOST = 1e6


@frozen(eq=False)
class PointsPlan:
    """Points to measure, and the seconds of GPU time that timing each is expected to take."""

    points: tuple[Points, ...]
    costs: tuple[Floats, ...]

    @property
    def seconds(self) -> float:
        return float(sum(cost.sum() for cost in self.costs))

    def save(self, path: Path) -> None:
        """Write the points into one file, CSV or Parquet by its suffix; raise ConfigError on failure."""
        write_points(self.points, path)

    def families(self) -> list[tuple[str, int, int, float]]:
        """Return, by family and number format: points to calibrate with, points to check with, expected seconds."""
        rows = []
        for name, group in groupby(zip(self.points, self.costs, strict=True), key=lambda pair: str(pair[0])):
            parts = list(group)
            checks = sum(int(np.isin(points.tags, CHECKS).sum()) for points, _ in parts)
            rows.append((name, sum(len(points) for points, _ in parts) - checks, checks,
                         float(sum(cost.sum() for _, cost in parts))))
        return rows


def plan(gpu: Gpu, families: Iterable[str] = (), models: Sequence[Model] = (), budget: float = BUDGET) -> PointsPlan:
    """Return the points of *families* (by default all), and of the layers of *models*, for *gpu*.

    Points that do not fit the GPU's memory or take too long are left out.  If the
    *budget*, in seconds of GPU time, is too short for the rest, every family is
    thinned out by the same share; a longer budget has all points of a shorter one.
    Raises UnknownName for an unknown family, ConfigError for a budget too short to calibrate anything.
    """
    if not budget <= _MOST:  # true for NaN, too
        raise ConfigError("--budget", f"a sweep takes at most {_MOST:g} s, not {budget:g}")
    wanted = list(families) or list(GRIDS)
    for name in wanted:
        if name not in GRIDS:
            raise UnknownName("kernel family", name, GRIDS)
    layers = Layers.of(models)
    grids = _distinct([points for name in dict.fromkeys(wanted) for points in GRIDS[name](gpu, layers)])
    usable = [part for part in (_usable(points, gpu) for points in grids) if len(part[0])]
    costs = [cost for _, cost in usable]
    orders = [_spread(points) for points, _ in usable]
    kept = _within(budget, [cost[order] for cost, order in zip(costs, orders, strict=True)])
    chosen = [np.sort(order[:count]) for order, count in zip(orders, kept, strict=True)]
    return PointsPlan(tuple(points.take(rows) for (points, _), rows in zip(usable, chosen, strict=True)),
                tuple(cost[rows] for cost, rows in zip(costs, chosen, strict=True)))


def _distinct(grids: Sequence[Points]) -> list[Points]:
    """Drop shapes that an earlier grid of the same family and format has, so that no check is also on the grid."""
    seen: set[tuple[object, ...]] = set()
    kept = []
    for points in grids:
        shapes = points.shapes()
        kept.append(points.take(np.array([shape not in seen for shape in shapes], dtype=bool)))
        seen.update(shapes)
    return kept


def _usable(points: Points, gpu: Gpu) -> tuple[Points, Floats]:
    """Return those of *points* that fit *gpu* and do not take too long, and the cost of each."""
    points = points.take(fits(points, gpu))
    expected = np.array(seconds(points, gpu))
    short = expected <= LONGEST
    return points.take(short), np.array([cost(seconds_of_one) for seconds_of_one in expected[short]])


def _within(budget: float, costs: Sequence[Floats]) -> list[int]:
    """Return how many points of each group fit the budget: the same share of all, but enough to calibrate."""
    def counts(share: float) -> list[int]:
        return [max(min(FEWEST, len(group)), int(share * len(group))) for group in costs]

    def total(share: float) -> float:
        return float(sum(group[:count].sum() for group, count in zip(costs, counts(share), strict=True)))

    if total(0.0) > budget:
        raise ConfigError("--budget", f"{budget:g} s is too short for {FEWEST} points of each family; "
                                      f"give at least {np.ceil(total(0.0)):.0f} s, or fewer --families")
    if total(1.0) <= budget:
        return counts(1.0)
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) <= budget else (low, middle)
    return counts(low)


def _spread(points: Points) -> Ints:
    """Order points so that each is as far as possible from all before it, in logarithms of the shape."""
    columns = [np.log2(column.astype(np.float64) + 1.0) for column in points.columns.values()]
    if points.batches:
        columns += [np.log2(sums.astype(np.float64)) for sums in (
            points.batches.sequences, points.batches.queries,
            points.batches.total(points.batches.counts * points.batches.kvlens))]
    places = np.column_stack(columns)
    order = np.zeros(len(places), dtype=np.int64)
    order[0] = int(np.argmin(places.sum(axis=1)))
    distance = np.full(len(places), np.inf)
    for i in range(1, len(places)):
        distance = np.minimum(distance, np.abs(places - places[order[i - 1]]).sum(axis=1))
        distance[order[i - 1]] = -1.0
        order[i] = int(np.argmax(distance))
    return order


Say = Callable[[str], None]


@frozen
class Timed:
    """Microseconds per launch, in the median and the fastest replay; and the launches in a graph."""

    median: float
    fastest: float
    launches: int


def run(points: Sequence[Points], folder: Path, device: Device | None = None, say: Say = print) -> list[Path]:
    """Measure *points* and write ``kernels_<family>.parquet`` into *folder*; return these files.

    They are measured on *device*, by default this machine's GPU.  Points that these files already have are not
    measured again, so an interrupted sweep can be continued; what was measured of a family is written even if the sweep
    breaks off.  Points that cannot be measured are reported and left out.  Raises ConfigError if the folder has
    measurements of another GPU.
    """
    device = device or TorchDevice()
    _describe(folder, device)
    written = []
    for family, parts in by_family(points):
        path = folder / f"{sweep_format.PREFIX}{family}.parquet"
        _family(parts, path, device, say)
        if path.exists():
            written.append(path)
    return written


def time(device: Device, point: MeasurementPoint, size: float) -> Timed:
    """Time *point*, whose buffers are *size* bytes; raise Unmeasurable if it cannot be timed."""
    try:
        launch = device.prepare(point, copies(size, device.l2))
        pilot = device.capture(launch, PILOT)
        pilot()
        count = launches(pilot() / PILOT)
        replay = device.capture(launch, count)
        for _ in range(WARM_UPS):
            replay()
        seconds = [replay() / count for _ in range(REPLAYS)]
    finally:
        device.release()
    return Timed(round(median(seconds) * 1e6, 3), round(min(seconds) * 1e6, 3), count)


def _family(parts: Sequence[Points], path: Path, device: Device, say: Say) -> None:
    """Measure the points that the file at *path* lacks, and write the file with all of them."""
    tables = [pq.read_table(path)] if path.exists() else []
    done = {shape for part in (sweep_format.points(path) if tables else []) for shape in part.shapes()}
    failures: dict[str, list[str]] = {}
    before, measured = len(done), 0
    try:
        for part in parts:
            missing = np.array([i for i, shape in enumerate(part.shapes()) if shape not in done], dtype=np.int64)
            new: list[tuple[int, Timed]] = []
            try:
                for i, timed in _timed(part, missing, device, failures):
                    new.append((i, timed))
            finally:
                measured += len(new)
                tables += [_table(part, new)] if new else []
    finally:
        if measured:
            save(pa.concat_tables(tables, promote_options="permissive"), path)
        say(f"{path.name}: {measured:,} points measured" + (f", {before:,} were there before" if before else ""))
        for reason, shapes in failures.items():
            say(f"{path.name}: {len(shapes):,} points left out, as {shapes[0]}: {reason}")


def _timed(part: Points, missing: Ints, device: Device, failures: dict[str, list[str]]) -> Iterator[tuple[int, Timed]]:
    sizes = buffers(part) if len(missing) else np.zeros(0)
    for i in missing:
        try:
            yield int(i), time(device, MeasurementPoint.of(part, int(i)), float(sizes[i]))
        except Unmeasurable as error:
            failures.setdefault(str(error), []).append(part.describe(int(i)))


def _table(part: Points, timed_points: Sequence[tuple[int, Timed]]) -> pa.Table:
    chosen = part.take(np.array([i for i, _ in timed_points], dtype=np.int64))
    results = [timed for _, timed in timed_points]
    more = {"latency_us": np.array([timed.median for timed in results]),
            "latency_min_us": np.array([timed.fastest for timed in results]),
            "reps": np.array([timed.launches for timed in results])}
    if part.family == "moe":  # the outcome of the choice of experts, which follows from the shape and a fixed seed
        counts = [expert_loads(MeasurementPoint.of(chosen, i)) for i in range(len(chosen))]
        more["active"] = np.array([int((count > 0).sum()) for count in counts])
        more["max_load"] = np.array([int(count.max()) for count in counts])
    return table(chosen, more)


def _describe(folder: Path, device: Device) -> None:
    """Write what the sweep is made with; raise ConfigError if an earlier one was made on another GPU."""
    path, about = folder / f"{sweep_format.PREFIX}misc.parquet", dict(device.about())
    if path.exists():
        frame = load(path)
        earlier = frame.where("family", "meta").texts("gpu").tolist() if "gpu" in frame else []
        if earlier and earlier[0] != about.get("gpu"):
            raise ConfigError(str(folder), f"has measurements of {earlier[0]}, but this GPU is {about.get('gpu')}; "
                                           f"name another folder with -o")
    save(pa.Table.from_pylist([{"family": "meta", **about}]), path)
