"""Ingest: the files and folders that a user names, read as the measurements of one GPU."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import evolve, frozen

from ksim.calibration.checks import gpu_of
from ksim.calibration.dataset import gpu_name
from ksim.calibration.datasheet import gpu_named
from ksim.calibration.measurements import Measurements, listed
from ksim.calibration.reading import is_candidate, read
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.specs.hardware import Gpu


@frozen(eq=False)
class Ingested:
    """Measurements of one `gpu`, which the catalogue or the file calls `called`, and remarks on unused files."""

    gpu: Gpu
    called: str
    measured: tuple[Measurements, ...]
    remarks: tuple[str, ...]


def digests(measured: Sequence[Measurements]) -> dict[str, str]:
    """Return the digest of each file by its name; files of the same name have their folder's name before it."""
    paths = list(dict.fromkeys(Path(rows.source.file) for rows in measured))
    names = [path.name for path in paths]
    return {path.name if names.count(path.name) == 1 else f"{path.parent.name}/{path.name}": digest(path)
            for path in paths}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def ingest(paths: Sequence[Path], gpu: str = "") -> Ingested:
    """Read all of *paths*, each file once, and keep what was measured on *gpu*: a catalogue name, or a path.

    Raises DataError for files that cannot be used, UnknownName for a GPU that the catalogue lacks, ConfigError if the
    files are of several GPUs and none is named, or of another GPU than the one named.
    """
    remarks: list[str] = []
    measured = [rows for path in paths for rows in read(path)]
    remarks += _unused(paths, measured)
    measured = _once(measured, remarks)
    if gpu:
        named = gpu_named(gpu_name(gpu) or gpu)
        kept = tuple(_of(measured, gpu, named))
        return Ingested(named, Path(gpu).stem if catalog.is_file(gpu) else gpu_name(gpu) or gpu, kept, tuple(remarks))
    devices = sorted({_device(rows) for rows in measured} - {""})
    if len(devices) > 1:
        raise ConfigError("--gpu", f"is needed: the files are of {', '.join(devices)}; name one of them")
    only = gpu_of(next((rows for rows in measured if rows.gpu is None), measured[0]))
    return Ingested(only, devices[0], tuple(measured), tuple(remarks))


def _device(rows: Measurements) -> str:
    return rows.gpu or rows.source.device


def _of(measured: Sequence[Measurements], gpu: str, named: Gpu) -> Iterator[Measurements]:
    """Yield what was measured on the GPU *named*; if all files are of one unknown device, it is taken for that GPU."""
    called = {gpu, gpu_name(gpu), named.name, Path(gpu).stem}
    devices = {_device(rows) for rows in measured} - {""}
    if not devices & called and devices:
        known = {rows.gpu for rows in measured if rows.gpu}
        if len(devices) > 1 or (known and not catalog.is_file(gpu)):
            raise ConfigError("--gpu", f"is {gpu}, but the files are of {', '.join(sorted(devices))}; name one of them")
        called |= devices
    for rows in measured:
        if _device(rows) in called or rows.source.device in called or not _device(rows):
            yield evolve(rows, gpu=rows.gpu or (None if catalog.is_file(gpu) else gpu_name(gpu)))


def _once(measured: Sequence[Measurements], remarks: list[str]) -> list[Measurements]:
    """Drop files that are copies of earlier ones: rows held out of one copy must not be in another."""
    first: dict[str, str] = {}
    for file in dict.fromkeys(rows.source.file for rows in measured):
        before = first.setdefault(digest(Path(file)), file)
        if before != file:
            remarks.append(f"{file}: is the same as {before}; it is read once")
    read_once = set(first.values())
    kept: dict[int, Measurements] = {}
    seen: set[tuple[str, str, str, int]] = set()
    for rows in measured:  # a path that is named twice has every file twice
        key = (rows.source.file, str(rows), repr(rows.source), int(rows.rows[0]) if len(rows) else 0)
        if rows.source.file in read_once and key not in seen:
            kept[id(rows)] = rows
        seen.add(key)
    return list(kept.values())


def _unused(paths: Sequence[Path], measured: Sequence[Measurements]) -> Iterator[str]:
    """Yield a remark for each folder with files that hold no kernels of ksim's families."""
    used: Mapping[str, None] = dict.fromkeys(rows.source.file for rows in measured)
    for folder in paths:
        if folder.is_dir():
            rest = [path.name for path in sorted(folder.rglob("*")) if is_candidate(path) and str(path) not in used]
            if rest:
                yield f"{folder}: has no kernels of ksim's families in {listed(rest, 'file')}"
