"""Readers of files of measured kernels; the format is recognised from the content.

To add a format, add a module with `recognises` and `measurements` of a `Frame`, and name it in `_TABLES`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from attrs import evolve

from ksim.calibration.datasheet import gpu_name
from ksim.calibration.measurements import Measurements
from ksim.calibration.reading import aiconfigurator, nccl, sweep, tables
from ksim.calibration.reading.frames import Frame, NoTable, load
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


def read(path: Path, *, gpu: str = "") -> list[Measurements]:
    """Read the file at *path*, or every file of measurements in that folder and below.

    With *gpu* (a name of the catalogue, or one that the file uses), only what was measured on it is returned, and files
    that name no GPU are taken to be of it.  Raises DataError for files that cannot be used and if nothing is left,
    UnknownName for a *gpu* that neither the catalogue nor the files know.
    """
    measured = _folder(path) if path.is_dir() else _file(path)
    if not gpu:
        return measured
    devices = {name for part in measured for name in (part.source.device, part.gpu or "") if name}
    if gpu not in devices and gpu_name(gpu) is None:
        raise UnknownName("GPU", gpu, {*devices, *entries("gpus")})
    named = [part if part.source.device else evolve(part, gpu=gpu_name(gpu)) for part in measured]
    kept = [part for part in named if gpu in (part.source.device, part.gpu) or part.gpu == gpu_name(gpu) is not None]
    if not kept:
        raise DataError(str(path), f"has no measurements with gpu {gpu!r}; it has {_sources(measured)}")
    return kept


def _file(path: Path) -> list[Measurements]:
    """Read one file; raise DataError, or its kinds NoTable and NoFamily for a file that is not meant for ksim."""
    if path.suffix != ".parquet" and nccl.recognises(_start(path)):
        return nccl.measurements(path)
    frame = load(path)
    for kind in _TABLES:
        if kind.recognises(frame):
            return kind.measurements(frame)
    raise NoTable(str(path), f"is in no known format; expected a sweep (a column family, or a name such as "
                             f"kernels_gemm.csv), AIConfigurator's tables, or a log of nccl-tests "
                             f"(its columns: {', '.join(frame.names)})")


def _folder(folder: Path) -> list[Measurements]:
    """Read every file that is in a known format and of ksim's families."""
    measured: list[Measurements] = []
    for path in sorted(folder.rglob("*")):
        if not is_candidate(path):
            continue
        try:
            measured += _file(path)
        except (NoTable, tables.NoFamily):
            if path.stem.startswith(sweep.PREFIX):
                raise  # by its name, the file is meant for ksim
    if not measured:
        raise DataError(str(folder), "has no file of measured kernels; expected kernels_<family>.parquet or .csv, "
                                     "AIConfigurator's tables (*_perf.txt), or logs of nccl-tests")
    return measured


def is_candidate(path: Path) -> bool:
    """Return whether *path*, a file in a folder that is read, may hold measurements."""
    return path.is_file() and path.suffix in _SUFFIXES and not path.name.startswith(".") and not sweep.is_aside(path)


def _start(path: Path) -> str:
    try:
        with regular_file(path).open("rb") as file:
            return file.read(_START).decode(errors="replace")
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror}") from None


def _sources(measured: Sequence[Measurements]) -> str:
    sources = {(part.gpu or part.source.device, part.source.backend, part.source.version, part.source.timing)
               for part in measured}
    return "; ".join(" ".join(word for word in source if word) for source in sorted(sources)) or "none"
