"""Files of measured kernels to `Measurements`; which format a file has is told by what is in it.

To add a format, add a module with `recognises` and `measurements` of a `Frame`, and name it in `_TABLES`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from attrs import evolve

from ksim.calibration.measurements import Measurements
from ksim.calibration.reading import aiconfigurator, nccl, sweep, tables
from ksim.calibration.reading.frames import Frame, NoTable, load
from ksim.calibration.reading.names import gpu_name
from ksim.foundation.catalog import entries
from ksim.foundation.errors import DataError, UnknownName
from ksim.foundation.files import regular_file

__all__ = ["is_candidate", "read"]


class _Table(Protocol):
    def recognises(self, frame: Frame) -> bool: ...

    def measurements(self, frame: Frame) -> list[Measurements]: ...


_TABLES: tuple[_Table, ...] = (aiconfigurator, sweep, tables)
_SUFFIXES = (".parquet", ".csv", ".txt", ".log", ".out")
_START = 20_000


def read(path: Path, *, gpu: str = "", backend: str = "", version: str = "", timing: str = "") -> list[Measurements]:
    """Read the file at *path*, or every file of measurements in that folder and those inside it.

    Only what was measured on *gpu* (a name of the catalogue, or one that the file uses), with *backend* and *version*,
    and timed in one way (*timing*, such as "graph") is returned; what names no GPU is taken to be of *gpu*.
    Raises DataError for files that cannot be used and where nothing is left, UnknownName for a *gpu* unknown to both.
    """
    found = _folder(path) if path.is_dir() else _file(path)
    wanted = {"backend": backend, "version": version, "timing": timing}
    kept = [part for part in found if all(value in ("", getattr(part.source, key)) for key, value in wanted.items())]
    kept = [evolve(part, gpu=gpu_name(gpu)) if gpu and not part.source.device else part for part in kept]
    if gpu:
        devices = {name for part in found for name in (part.source.device, part.gpu or "") if name}
        if gpu not in devices and gpu_name(gpu) is None:
            raise UnknownName("GPU", gpu, {*devices, *entries("gpus")})
        kept = [part for part in kept if gpu in (part.source.device, part.gpu) or part.gpu == gpu_name(gpu) is not None]
    if not kept:
        raise DataError(str(path), f"has no measurements with {_said({'gpu': gpu, **wanted})}; it has {_had(found)}")
    return kept


def _file(path: Path) -> list[Measurements]:
    """Those of one file; raises NoTable and NoFamily, besides DataError, for what has nothing to do with ksim."""
    if path.suffix != ".parquet" and nccl.recognises(_start(path)):
        return nccl.measurements(path)
    frame = load(path)
    for kind in _TABLES:
        if kind.recognises(frame):
            return kind.measurements(frame)
    raise NoTable(str(path), f"is of no known format; expected a sweep (a column family, or a name such as "
                             f"kernels_gemm.csv), AIConfigurator's tables, or a log of nccl-tests "
                             f"(its columns: {', '.join(frame.names)})")


def _folder(folder: Path) -> list[Measurements]:
    """Those of every file that is of a known format and of families that ksim has."""
    found: list[Measurements] = []
    for path in sorted(folder.rglob("*")):
        if not is_candidate(path):
            continue
        try:
            found += _file(path)
        except (NoTable, tables.NoFamily):
            if path.stem.startswith(sweep.PREFIX):
                raise  # whatever is wrong with it, it is meant to be read
    if not found:
        raise DataError(str(folder), "has no file of measured kernels; expected kernels_<family>.parquet or .csv, "
                                     "AIConfigurator's tables (*_perf.txt), or logs of nccl-tests")
    return found


def is_candidate(path: Path) -> bool:
    """Whether *path*, found in a folder, is looked into."""
    return path.is_file() and path.suffix in _SUFFIXES and not path.name.startswith(".") and not sweep.is_aside(path)


def _start(path: Path) -> str:
    try:
        with regular_file(path).open("rb") as file:
            return file.read(_START).decode(errors="replace")
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror}") from None


def _said(wanted: dict[str, str]) -> str:
    return ", ".join(f"{key} {value!r}" for key, value in wanted.items() if value) or "any kernel"


def _had(found: Sequence[Measurements]) -> str:
    sources = {(part.gpu or part.source.device, part.source.backend, part.source.version, part.source.timing)
               for part in found}
    return "; ".join(" ".join(word for word in source if word) for source in sorted(sources)) or "none"
