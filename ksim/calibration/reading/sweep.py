"""The sweep format, of points and of measurements, read and written: Parquet or CSV, one row per point.

A file holds one family, named in ``kernels_<family>``, or several, named in a column `family`.  `dtype` is bf16 if
there is none, `latency_us` is in microseconds, `tag` says what a point is for, and the shape is in the columns of
`ksim.calibration.measurements.FAMILIES`.  Attention has `qlens` and `kvlens` for its batches: lists with an entry per
sequence; in CSV as ``1 1 201`` or ``[1, 1, 201]``.  A row "meta" in ``kernels_misc`` names the GPU and the versions of
all files in the folder; a column `gpu` names the GPU row by row.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ksim.calibration.batches import Column, PointBatches
from ksim.calibration.datasheet import format_name, gpu_name
from ksim.calibration.measurements import FAMILIES, MISSING, SWEEP, FamilyColumns, Measurements, Points, Source
from ksim.calibration.reading.frames import Frame, load
from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.files import replacing

PREFIX = "kernels_"
LATENCY = "latency_us"
#: Files of a sweep without times of single kernels, and rows that are no kernels.
ASIDE = ("misc", "energy")
NO_KERNELS = ("meta", "idle", "graph_node", "eager_launch")


def recognises(frame: Frame) -> bool:
    """Return whether *frame* is in this format, even if it is incomplete."""
    return "family" in frame or frame.path.stem.startswith(PREFIX)


def measurements(frame: Frame) -> list[Measurements]:
    """Return the measurements in *frame* by family and number format; raise DataError for what cannot be used."""
    if LATENCY not in frame:
        near = get_close_matches(LATENCY, frame.names, n=1, cutoff=0.4)
        hint = f" ({near[0]!r} is not read: its unit could be any)" if near else \
            "; if it is a list of points, measure them with python -m ksim.calibration.runner"
        raise DataError(str(frame.path), f"has no column {LATENCY!r}, the time in microseconds{hint}")
    about = _about(frame.path.parent)
    measured = []
    for family, dtype, device, part in _families(frame):
        source = Source(str(frame.path), SWEEP, about.get("vllm", ""), "", "graph", device or about.get("gpu", ""),
                        frame.unit)
        shapes = _points(family, dtype, part)
        measured.append(Measurements(
            family=family, dtype=shapes.dtype, columns=shapes.columns, batches=shapes.batches, tags=shapes.tags,
            seconds=part.numbers(LATENCY) * 1e-6, rows=part.places, source=source, gpu=gpu_name(source.device)))
    return measured


def points(path: Path) -> list[Points]:
    """Return the points in the file at *path*, measured or not; raise DataError for what cannot be used."""
    return [_points(family, dtype, part) for family, dtype, _, part in _families(load(path))]


def _families(frame: Frame) -> list[tuple[str, str, str, Frame]]:
    """Return each family, number format and GPU (empty if *frame* does not name it) with its rows."""
    if not len(frame):
        raise DataError(str(frame.path), "has a header and no rows")
    if "family" not in frame:
        frame = frame.having("family", np.full(len(frame), frame.path.stem.removeprefix(PREFIX)))
    families = []
    for names, part in frame.groups("family", "dtype", "gpu"):
        family = names["family"]
        if family in NO_KERNELS:
            continue
        if family not in FAMILIES:
            near = get_close_matches(family, FAMILIES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            source = Source(str(frame.path), unit=frame.unit)
            raise DataError(source.at(part.places), f"no family of kernels is called {family!r}{hint} "
                                                    f"(families: {', '.join(FAMILIES)})")
        families.append((family, format_name(names["dtype"] or "bf16"), names["gpu"], part))
    return families


def _points(family: str, dtype: str, part: Frame) -> Points:
    known = FAMILIES[family]
    _need(family, known, part)
    columns: dict[str, Column] = {name: part.whole(name) for name in known.needs}
    for name in known.may:
        if name in part:
            columns[name] = part.numbers(name) if name == "skew" else part.whole(name)
    tags = part.texts("tag") if "tag" in part else np.full(len(part), "")
    return Points(family=family, dtype=dtype, columns=columns, tags=tags,
                  batches=_batches(part) if known.batched else None)


def _need(family: str, known: FamilyColumns, part: Frame) -> None:
    needed = (*known.needs, *(("qlens", "kvlens") if known.batched else ()))
    missing = [name for name in needed if name not in part]
    if missing:
        raise DataError(str(part.path), f"has no column {' and no '.join(map(repr, missing))}; {family} needs "
                                        f"{', '.join(needed)}, and the file has {', '.join(part.names)}")


def _batches(part: Frame) -> PointBatches:
    """Return the sequences of each row; raise DataError for rows whose two lists differ in length."""
    starts, qlens = part.lists("qlens")
    kv_starts, kvlens = part.lists("kvlens")
    differ = np.flatnonzero(np.diff(starts) != np.diff(kv_starts))
    if len(differ):
        first = int(differ[0])
        raise DataError(Source(str(part.path), unit=part.unit).at(part.places[differ]),
                        f"qlens and kvlens have an entry for each sequence, but they are {np.diff(starts)[first]} and "
                        f"{np.diff(kv_starts)[first]} long; kvlens counts the new tokens too")
    return PointBatches.flat(starts, qlens, kvlens)


def _about(folder: Path) -> dict[str, str]:
    """Return the GPU and versions that the sweep in *folder* was made with, as far as it names them."""
    for suffix in (".parquet", ".csv"):
        path = folder / f"{PREFIX}misc{suffix}"
        if path.exists():
            frame = load(path)
            meta = frame.where("family", "meta") if "family" in frame else frame
            return {name: str(meta.texts(name)[0]) for name in ("gpu", "vllm") if name in meta and len(meta)}
    return {}


def is_aside(path: Path) -> bool:
    """Return whether *path* is a file of a sweep without times of single kernels."""
    return path.stem.startswith(PREFIX) and path.stem.removeprefix(PREFIX) in ASIDE


def write_points(points: Sequence[Points], path: Path) -> None:
    """Write *points* of any families into one file, CSV or Parquet by its suffix; raise ConfigError on failure."""
    save(pa.concat_tables([table(part) for part in points], promote_options="default"), path)


def table(points: Points, more: Mapping[str, Column] | None = None) -> pa.Table:
    """Return *points* in the sweep format: family, number format, shape, *more* columns such as latencies, and tag."""
    count = len(points)
    columns: dict[str, Any] = {"family": pa.array([points.family] * count, pa.string()),
                               "dtype": pa.array([points.dtype] * count, pa.string())}
    for name, column in points.columns.items():
        columns[name] = pa.array(column, mask=column == MISSING)
    if points.batches is not None:
        lengths = [points.batches.lengths(point) for point in range(count)]
        for name, which in (("qlens", 0), ("kvlens", 1)):
            columns[name] = pa.array([pair[which] for pair in lengths], pa.list_(pa.int64()))
        columns["batch"] = points.batches.sequences
    return pa.table({**columns, **(more or {}), "tag": pa.array(points.tags.tolist(), pa.string())})


def save(made: pa.Table, path: Path) -> None:
    """Write a table as CSV or Parquet, by the suffix of *path*; raise ConfigError for another suffix, or on failure."""
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(str(path), "is not in a format of sweeps; name a file that ends in .csv or .parquet")
    with replacing(path) as new:
        if path.suffix == ".csv":
            pa_csv.write_csv(_flat(made), new, pa_csv.WriteOptions(quoting_style="needed"))
        else:
            pq.write_table(made, new)


def _flat(made: pa.Table) -> pa.Table:
    """Return the table with its lists as texts such as ``1 1 201``."""
    columns = [pc.binary_join(pc.cast(column, pa.list_(pa.string())), " ") if pa.types.is_list(column.type) else column
               for column in made.columns]
    return pa.table(columns, names=made.column_names)
