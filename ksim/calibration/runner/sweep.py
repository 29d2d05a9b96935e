"""Time the points of a sweep one by one, and write a file per family as soon as the family is done."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import frozen

from ksim.calibration.batches import Ints
from ksim.calibration.measurements import Points, by_family
from ksim.calibration.points import PILOT, REPLAYS, WARM_UPS, buffers, copies, launches
from ksim.calibration.reading import sweep as sweep_format
from ksim.calibration.reading.frames import load
from ksim.calibration.reading.sweep import save, table
from ksim.calibration.runner.device import Device, KernelPoint, TorchDevice, Unmeasurable, expert_loads
from ksim.foundation.errors import ConfigError

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


def time(device: Device, point: KernelPoint, size: float) -> Timed:
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
            yield int(i), time(device, KernelPoint.of(part, int(i)), float(sizes[i]))
        except Unmeasurable as error:
            failures.setdefault(str(error), []).append(part.describe(int(i)))


def _table(part: Points, timed_points: Sequence[tuple[int, Timed]]) -> pa.Table:
    chosen = part.take(np.array([i for i, _ in timed_points], dtype=np.int64))
    results = [timed for _, timed in timed_points]
    more = {"latency_us": np.array([timed.median for timed in results]),
            "latency_min_us": np.array([timed.fastest for timed in results]),
            "reps": np.array([timed.launches for timed in results])}
    if part.family == "moe":  # the outcome of the choice of experts, which follows from the shape and a fixed seed
        counts = [expert_loads(KernelPoint.of(chosen, i)) for i in range(len(chosen))]
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
