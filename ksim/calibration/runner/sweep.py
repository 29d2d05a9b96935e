"""Time the points of a sweep one after the other, and write a file for each family as it is done."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import frozen

from ksim.calibration.measurements import Ints, Points, by_family
from ksim.calibration.points import PILOT, REPLAYS, WARM_UPS, buffers, copies, launches
from ksim.calibration.reading import sweep as sweep_format
from ksim.calibration.reading.frames import load
from ksim.calibration.reading.sweep import save, table
from ksim.calibration.runner.device import Device, Point, Unmeasurable
from ksim.calibration.runner.launches import loads
from ksim.foundation.errors import ConfigError

Say = Callable[[str], None]


@frozen
class Timed:
    """Microseconds of one launch: the median of the replays, and the fastest; and the launches in a graph."""

    median: float
    fastest: float
    launches: int


def run(points: Sequence[Points], folder: Path, device: Device, say: Say = print) -> list[Path]:
    """Measure *points* on *device* and write ``kernels_<family>.parquet`` into *folder*; return these files.

    Points that the files there have already are not measured again, so that an interrupted sweep goes on where it was;
    what was measured of a family is written even if its sweep breaks off.  What cannot be measured is said and left
    out.  Raises ConfigError where the folder has measurements of another GPU.
    """
    _describe(folder, device)
    written = []
    for family, parts in by_family(points):
        path = folder / f"{sweep_format.PREFIX}{family}.parquet"
        _family(parts, path, device, say)
        if path.exists():
            written.append(path)
    return written


def time(device: Device, point: Point, size: float) -> Timed:
    """Time *point*, whose buffers are *size* bytes; raise Unmeasurable where it cannot."""
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
    """Measure what the file at *path* lacks, and write it with what it has."""
    tables = [pq.read_table(path)] if path.exists() else []
    done = {shape for part in (sweep_format.points(path) if tables else []) for shape in _shapes(part)}
    failures: dict[str, list[str]] = {}
    before, measured = len(done), 0
    try:
        for part in parts:
            missing = np.array([i for i, shape in enumerate(_shapes(part)) if shape not in done], dtype=np.int64)
            found: list[tuple[int, Timed]] = []
            try:
                for i, timed in _timed(part, missing, device, failures):
                    found.append((i, timed))
            finally:
                measured += len(found)
                tables += [_table(part, found)] if found else []
    finally:
        if measured:
            save(pa.concat_tables(tables, promote_options="permissive"), path)
        say(f"{path.name}: {measured:,} points measured" + (f", {before:,} were there" if before else ""))
        for reason, shapes in failures.items():
            say(f"{path.name}: {len(shapes):,} points left out, as {shapes[0]}: {reason}")


def _timed(part: Points, missing: Ints, device: Device, failures: dict[str, list[str]]) -> Iterator[tuple[int, Timed]]:
    sizes = buffers(part) if len(missing) else np.zeros(0)
    for i in missing:
        try:
            yield int(i), time(device, Point.of(part, int(i)), float(sizes[i]))
        except Unmeasurable as error:
            failures.setdefault(str(error), []).append(part.describe(int(i)))


def _table(part: Points, found: Sequence[tuple[int, Timed]]) -> pa.Table:
    chosen = part.take(np.array([i for i, _ in found], dtype=np.int64))
    more = {name: np.array(values) for name, values in (
        ("latency_us", [timed.median for _, timed in found]), ("latency_min_us", [timed.fastest for _, timed in found]),
        ("reps", [timed.launches for _, timed in found]))}
    if part.family == "moe":  # what the choice of experts came to, which follows from the shape and a fixed seed
        counts = [loads(Point.of(chosen, i)) for i in range(len(chosen))]
        more["active"] = np.array([int((count > 0).sum()) for count in counts])
        more["max_load"] = np.array([int(count.max()) for count in counts])
    return table(chosen, more)


def _shapes(points: Points) -> list[tuple[object, ...]]:
    """What tells each of *points* from the others of its family."""
    return [(points.dtype, *shape) for shape in zip(*(column.tolist() for column in points.shape()), strict=True)]


def _describe(folder: Path, device: Device) -> None:
    """Write what the sweep is made with; raises ConfigError where an earlier one was made on another GPU."""
    path, about = folder / f"{sweep_format.PREFIX}misc.parquet", dict(device.about())
    if path.exists():
        frame = load(path)
        earlier = frame.where("family", "meta").texts("gpu").tolist() if "gpu" in frame else []
        if earlier and earlier[0] != about.get("gpu"):
            raise ConfigError(str(folder), f"has measurements of {earlier[0]}, and this is {about.get('gpu')}; "
                                           f"name another folder with -o")
    save(pa.Table.from_pylist([{"family": "meta", **about}]), path)
