"""Tables of many GPUs in one file, with columns for the GPU, the serving engine, its version and the kernel.

The columns are those of NVIDIA AIConfigurator's tables, repackaged as one Parquet file per family with latencies in
microseconds.  `aiconfigurator` reads the original tables by renaming their columns to these.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from attrs import frozen

from ksim.calibration.batches import Column, Ints, PointBatches, Texts
from ksim.calibration.datasheet import format_name, gpu_name
from ksim.calibration.measurements import COLLECTIVES, MISSING, Measurements, Source, tagged
from ksim.calibration.reading.frames import Frame
from ksim.foundation.errors import DataError


class NoFamily(DataError):
    """A table of kernels that ksim does not simulate."""


#: The columns by which a file is grouped: each group has one `Source`.
_GROUPS = ("gpu", "backend", "version", "kernel", "impl", "timing", "op", "dtype", "kv_dtype")
_OPS = {"alltoall": "all_to_all"}


@frozen
class Parts:
    """A group of rows as the family's columns, batches and tags."""

    columns: Mapping[str, Column]
    tags: Texts
    batches: PointBatches | None = None


@frozen
class Kind:
    """A kind of table: the columns that it needs, those that it must not have, and how it is read."""

    family: str
    needs: frozenset[str]
    lacks: frozenset[str]
    parts: Callable[[Frame], Parts]


def _gemm(frame: Frame) -> Parts:
    return Parts({name: frame.whole(name) for name in "mnk"}, tagged("", len(frame)))


def _heads(frame: Frame) -> dict[str, Column]:
    columns = {"hq": "num_heads", "hkv": "num_kv_heads", "d": "head_dim"}
    heads: dict[str, Column] = {name: frame.whole(column) for name, column in columns.items()}
    if "window" in frame:
        heads["window"] = frame.whole("window")
    return heads


def _context(frame: Frame) -> Parts:
    new = frame.whole("isl")
    cached = frame.whole("prefix") if "prefix" in frame else np.zeros_like(new)
    return Parts(_heads(frame), tagged("prefill", len(frame)), _uniform(frame, new, new + cached))


def _generation(frame: Frame) -> Parts:
    length = frame.whole("kv_len")
    return Parts(_heads(frame), tagged("decode", len(frame)), _uniform(frame, np.ones_like(length), length))


def _mla(frame: Frame) -> Parts:
    tags = np.where(frame.texts("phase") == "context", "prefill", "decode")
    columns: dict[str, Column] = {"hq": frame.whole("num_heads"), "tp": frame.whole("tp")}
    return Parts(columns, tags, _uniform(frame, frame.whole("q_len"), frame.whole("kv_len")))


def _uniform(frame: Frame, new: Ints, length: Ints) -> PointBatches:
    return PointBatches.uniform(frame.whole("batch"), new, length)


def _moe(frame: Frame) -> Parts:
    """Read the layer of one rank: `tp` ranks share each expert, and `ep` ranks divide the experts among them."""
    distribution = frame.texts("distribution")
    skew = [float(name.rpartition("_")[2]) if name.startswith("power_law_") else 0.0 for name in distribution]
    inter, tp = frame.whole("inter"), frame.whole("tp")
    return Parts({"t": frame.whole("tokens"), "e": frame.whole("experts"), "topk": frame.whole("topk"),
                  "h": frame.whole("hidden"), "inter": np.where(tp > 0, inter // np.maximum(tp, 1), MISSING),
                  "ep": frame.whole("ep"), "skew": np.array(skew, dtype=np.float64)}, distribution)


def _quantize(frame: Frame) -> Parts:
    return Parts({"t": frame.whole("m"), "h": frame.whole("k")}, tagged("", len(frame)))


def _collective(frame: Frame) -> Parts:
    return Parts({"gpus": frame.whole("gpus"), "bytes": frame.whole("bytes")}, tagged("", len(frame)))


def _kind(family: str, needs: str, parts: Callable[[Frame], Parts], lacks: str = "") -> Kind:
    return Kind(family, frozenset(needs.split()), frozenset({"power_w", *lacks.split()}), parts)


KINDS = (
    _kind("gemm", "dtype m n k", _gemm),
    _kind("attention", "batch isl num_heads num_kv_heads head_dim kv_dtype", _context, lacks="kv_len"),
    _kind("attention", "batch kv_len num_heads num_kv_heads head_dim kv_dtype", _generation),
    _kind("mla", "phase batch q_len kv_len num_heads tp kv_dtype", _mla, lacks="model gemm_dtype"),
    _kind("moe", "dtype tokens hidden inter topk experts tp ep distribution", _moe),
    _kind("quantize", "op dtype m k", _quantize, lacks="n"),
    _kind("collective", "op dtype gpus bytes", _collective),
)


def recognises(frame: Frame) -> bool:
    return {"gpu", "latency_us"} <= {*frame.names} and ("backend" in frame or "kernel" in frame)


def measurements(frame: Frame, family: str = "") -> list[Measurements]:
    """Return the measurements in *frame* by GPU, engine, version, kernel and number format.

    *family* is that of the table, if it is known.  Raises NoFamily for a kind of table that ksim has no family for,
    DataError for a table that lacks columns.
    """
    return list(_read(_recognise(frame, family), frame))


def _recognise(frame: Frame, family: str) -> Kind:
    have = {*frame.names}
    kinds = [kind for kind in KINDS if family in ("", kind.family)]
    for kind in kinds:
        if kind.needs <= have and not kind.lacks & have:
            return kind
    near = min(kinds, key=lambda kind: len(kind.needs - have))
    missing = near.needs - have
    if not near.lacks & have and len(missing) == 1:
        raise DataError(str(frame.path), f"looks like a table of {near.family}, but has no column {min(missing)!r}; "
                                         f"it has {', '.join(frame.names)}")
    raise NoFamily(str(frame.path), f"is a table of kernels that ksim has no family for; leave it out "
                                    f"(its columns: {', '.join(frame.names)})")


def _read(kind: Kind, frame: Frame) -> Iterator[Measurements]:
    for names, group in frame.groups(*_GROUPS):
        family = kind.family
        if family == "collective":
            family = _OPS.get(names["op"], names["op"])
            if family not in COLLECTIVES:
                raise DataError(Source(str(frame.path), unit=frame.unit).at(group.places),
                                f"{family!r} is not a collective of {', '.join(COLLECTIVES)}")
        kernel = names["kernel"] if kind.family != "quantize" else f"{names['op']} {names['kernel']}"
        source = Source(str(frame.path), names["backend"], names["version"], kernel,
                        names["timing"], names["gpu"], frame.unit)
        parts = kind.parts(group)
        yield Measurements(
            family=family, dtype=format_name(names["kv_dtype"] or names["dtype"]), columns=parts.columns,
            batches=parts.batches, tags=parts.tags, seconds=group.numbers("latency_us") * 1e-6, rows=group.places,
            source=source, gpu=gpu_name(names["gpu"]))
