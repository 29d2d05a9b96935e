"""The sweep format, of points and of measurements: Parquet or CSV, one row a point.

A file holds one family, named in ``kernels_<family>``, or several, named in a column `family`.  `dtype` is bf16
where there is none, `latency_us` is microseconds, `tag` says what a point is for, and the shape has the columns of
`ksim.calibration.measurements.FAMILIES`.  Attention has `qlens` and `kvlens` in place of batches: a list each, with
an entry a sequence; in CSV as ``1 1 201`` or ``[1, 1, 201]``.  A row "meta" in ``kernels_misc`` names the GPU and the
versions of everything in the same folder; a column `gpu` names it row by row.
"""

from difflib import get_close_matches
from pathlib import Path

import numpy as np

from ksim.calibration.measurements import FAMILIES, SWEEP, Batches, Column, Family, Measurements, Points, Source
from ksim.calibration.reading.frames import Frame, load
from ksim.calibration.reading.names import format_name, gpu_name
from ksim.foundation.errors import DataError

PREFIX = "kernels_"
LATENCY = "latency_us"
#: Files of a sweep that hold no times of kernels alone, and rows that are no kernels.
ASIDE = ("misc", "energy")
NO_KERNELS = ("meta", "idle", "graph_node", "eager_launch")


def recognises(frame: Frame) -> bool:
    """Whether *frame* is of this format, however incomplete."""
    return "family" in frame or frame.path.stem.startswith(PREFIX)


def measurements(frame: Frame) -> list[Measurements]:
    """What *frame* measures, a family and number format each; raises DataError for what cannot be used."""
    if LATENCY not in frame:
        near = get_close_matches(LATENCY, frame.names, n=1, cutoff=0.4)
        hint = f" ({near[0]!r} is not read: its unit could be any)" if near else \
            "; if it is a list of points, measure them with python -m ksim.calibration.runner"
        raise DataError(str(frame.path), f"has no column {LATENCY!r}, the time in microseconds{hint}")
    about = _about(frame.path.parent)
    found = []
    for family, dtype, device, part in _families(frame):
        source = Source(str(frame.path), SWEEP, about.get("vllm", ""), "", "graph", device or about.get("gpu", ""),
                        frame.unit)
        shapes = _points(family, dtype, part)
        found.append(Measurements(
            family=family, dtype=shapes.dtype, columns=shapes.columns, batches=shapes.batches, tags=shapes.tags,
            seconds=part.numbers(LATENCY) * 1e-6, rows=part.places, source=source, gpu=gpu_name(source.device)))
    return found


def points(path: Path) -> list[Points]:
    """The points that the file at *path* lists, measured or not; raises DataError for what cannot be used."""
    return [_points(family, dtype, part) for family, dtype, _, part in _families(load(path))]


def _families(frame: Frame) -> list[tuple[str, str, str, Frame]]:
    """Each family, number format and GPU (empty where *frame* does not say) with its rows."""
    if not len(frame):
        raise DataError(str(frame.path), "has a header and no rows")
    if "family" not in frame:
        frame = frame.having("family", np.full(len(frame), frame.path.stem.removeprefix(PREFIX)))
    found = []
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
        found.append((family, format_name(names["dtype"] or "bf16"), names["gpu"], part))
    return found


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


def _need(family: str, known: Family, part: Frame) -> None:
    needed = (*known.needs, *(("qlens", "kvlens") if known.batched else ()))
    missing = [name for name in needed if name not in part]
    if missing:
        raise DataError(str(part.path), f"has no column {' and no '.join(map(repr, missing))}; {family} needs "
                                        f"{', '.join(needed)}, and the file has {', '.join(part.names)}")


def _batches(part: Frame) -> Batches:
    """The sequences of each row; raises DataError for rows whose two lists are of different lengths."""
    starts, qlens = part.lists("qlens")
    kv_starts, kvlens = part.lists("kvlens")
    differ = np.flatnonzero(np.diff(starts) != np.diff(kv_starts))
    if len(differ):
        first = int(differ[0])
        raise DataError(Source(str(part.path), unit=part.unit).at(part.places[differ]),
                        f"qlens and kvlens have an entry for each sequence, but they are {np.diff(starts)[first]} and "
                        f"{np.diff(kv_starts)[first]} long; kvlens counts the new tokens too")
    return Batches.flat(starts, qlens, kvlens)


def _about(folder: Path) -> dict[str, str]:
    """The GPU and versions that the sweep in *folder* was made with, as far as it says."""
    for suffix in (".parquet", ".csv"):
        path = folder / f"{PREFIX}misc{suffix}"
        if path.exists():
            frame = load(path)
            meta = frame.where("family", "meta") if "family" in frame else frame
            return {name: str(meta.texts(name)[0]) for name in ("gpu", "vllm") if name in meta and len(meta)}
    return {}


def is_aside(path: Path) -> bool:
    """Whether *path* is a file of a sweep that holds no times of kernels alone."""
    return path.stem.startswith(PREFIX) and path.stem.removeprefix(PREFIX) in ASIDE
