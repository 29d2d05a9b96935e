"""Calibration: from the measurements of one GPU to its profile.

`ingest` reads the files and folders that a user names.  `calibrate` fits each family, with its error and what could not
be used.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import evolve, frozen

from ksim.calibration.checks import FEWEST, Checked, TooFew, check, gpu_of
from ksim.calibration.dataset import Dataset, join
from ksim.calibration.datasheet import gpu_name, gpu_named
from ksim.calibration.fitting import FOLDS, Candidate, FitSpec, LeftOut, Selected, cross_validate, fit, select
from ksim.calibration.measurements import COLLECTIVES, Measurements, joined, listed
from ksim.calibration.reading import is_candidate, read
from ksim.calibration.recipes import FIT_SPECS, by_spec
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.files import replacing
from ksim.oracles.efficiency import profiled
from ksim.oracles.efficiency.models import Array, Efficiency
from ksim.specs.hardware import Gpu

#: A learning curve has the errors of fits to these shares of the points.
CURVE = (0.125, 0.25, 0.5)
#: The most points of a table that are fitted to; of a larger table, a sample is drawn.
MOST = 6000
#: Fewer points are enough if their error is at most this factor above that of all points.
ENOUGH = 1.15
#: The suffix of a profile's file.
ENDING = ".npz"


@frozen
class CalibratedFamily:
    """One family's part of a profile, and its errors.

    `error` and `bias` are those at points held out in turn, relative to the
    measured time.  `curve` has the errors of fits to fewer points, and `checks`
    the error at each tag that was not fitted to.
    """

    name: str
    efficiency: Efficiency
    points: int
    error: float
    bias: float
    curve: tuple[tuple[int, float], ...]
    checks: tuple[tuple[str, int, float], ...]

    @property
    def enough(self) -> int:
        """The fewest points of the curve that do nearly as well as all."""
        return next((points for points, error in self.curve if error <= ENOUGH * self.error), self.points)


@frozen
class Calibration:
    """The fitted families of a profile, the rows left out with the reasons, and remarks on unused measurements."""

    gpu: Gpu
    parts: tuple[CalibratedFamily, ...]
    left: tuple[LeftOut, ...]
    remarks: tuple[str, ...]


def calibrate(measured: Sequence[Measurements], gpu: Gpu, say: Callable[[str], None] = lambda _: None) -> Calibration:
    """Fit every family that has enough points in *measured*, all of *gpu*; raise DataError if none has."""
    parts: list[CalibratedFamily] = []
    left: list[LeftOut] = []
    remarks: list[str] = []
    specs = list(by_spec(measured))
    for spec, taken in specs:
        kept = [checked.kept for checked in _checked(_of_one_kind(taken, remarks), gpu, remarks)]
        selected = select(spec, list(_by_source(kept)), gpu)
        left += selected.left
        if selected.outside_core and spec.core:
            outside = sum(map(len, selected.outside_core))
            left.append(LeftOut(f"{spec.name}: not core ({spec.core.reason})", outside))
        if _suffices(spec, selected, remarks):
            say(spec.name)
            parts.append(_part(spec, selected, remarks))
    known = {id(rows) for _, taken in specs for rows in taken}
    remarks += _unfitted([rows for rows in measured if id(rows) not in known])
    if not parts:
        raise DataError(measured[0].source.file if measured else "sweep",
                        "; ".join(["has no family with enough points to calibrate", *remarks]))
    return Calibration(gpu, tuple(parts), tuple(left), tuple(remarks))


def _of_one_kind(taken: Sequence[Measurements], remarks: list[str]) -> list[Measurements]:
    """Return a sweep's rows if there are any: a table's rows were timed in another way and are not mixed with them."""
    swept = [rows for rows in taken if rows.source.swept]
    for rows in taken if swept else ():
        if not rows.source.swept:
            remarks.append(f"{rows.source.file}: {len(rows):,} rows of {rows} are of a table that was timed in another "
                           f"way than {swept[0].source.file}, so they are left out; calibrate from one of the two")
    return swept or [*taken]


def _by_source(checked: Sequence[Measurements]) -> Iterator[Measurements]:
    """Join what several files have from one source, so that copies of a shape are held out together."""
    by_source: dict[tuple[str, ...], list[Measurements]] = {}
    for rows in checked:
        source = rows.source
        by_source.setdefault((source.backend, source.version, source.kernel, source.timing), []).append(rows)
    yield from map(joined, by_source.values())


def _checked(taken: Sequence[Measurements], gpu: Gpu, remarks: list[str]) -> Iterator[Checked]:
    for rows in taken:
        try:
            checked = check(rows, gpu)
        except TooFew as few:
            remarks.append(str(few))
            continue
        remarks += checked.remarks()
        yield checked


def _suffices(spec: FitSpec, selected: Selected, remarks: list[str]) -> bool:
    """Return whether enough points are left to fit; add a remark if not."""
    usable = sum(int((~dataset.checks).sum()) for dataset in selected.core)
    if selected.core and usable < FEWEST:
        remarks.append(f"{spec.name}: {usable} points to fit are too few to calibrate it; measure {FEWEST} or more")
    elif not selected.core and selected.left:
        remarks.append(f"{spec.name}: all of its rows are left out")
    return usable >= FEWEST


def _unfitted(measured: Sequence[Measurements]) -> Iterator[str]:
    """Yield a remark for each file with rows that no fit spec takes."""
    by_file: dict[tuple[str, bool], list[Measurements]] = {}
    for rows in measured:
        by_file.setdefault((rows.source.file, rows.family in COLLECTIVES), []).append(rows)
    for (file, collectives), parts in by_file.items():
        names = ", ".join(dict.fromkeys(rows.family if collectives else str(rows) for rows in parts))
        yield (f"{file}: {sum(map(len, parts)):,} rows of {names} were read, but a profile holds " + (
            "kernels only; the times of collectives are in the files of ksim/data/transports that a system names"
            if collectives else f"none of them (it can hold {', '.join(spec.name for spec in FIT_SPECS)})"))


def _part(spec: FitSpec, selected: Selected, remarks: list[str]) -> CalibratedFamily:
    rows, joint = selected.rows, join(selected.core)
    swept = rows[0].source.swept
    candidate = spec.sweep if swept else spec.table
    kept = joint.take(~joint.checks).sample(MOST).divisible()
    if len(np.unique(joint.groups[~joint.checks])) == 1:
        remarks.append(f"{spec.name}: all points are of one group, such as one width or head shape; errors and "
                       f"intervals come from points held out one by one, and are too small for other groups")
    source = f"{len(kept):,} points of {rows[0].source.file.rpartition('/')[2]}"
    validated = cross_validate(spec, kept, swept, source)
    tags = np.concatenate([measured.tags for measured in rows])
    checks = tuple((str(tag), len(points), _error(validated.fitted.predict(points), points))
                   for tag in np.unique(tags[joint.checks]) for points in [joint.take(joint.checks & (tags == tag))])
    return CalibratedFamily(
        spec.name, validated.efficiency, len(kept), _error(validated.seconds, validated.kept),
        float(np.mean(validated.seconds / validated.kept.seconds - 1)),
        tuple(_curve(spec, candidate, validated.kept, swept)), checks)


def _curve(spec: FitSpec, candidate: Candidate, dataset: Dataset, swept: bool) -> Iterator[tuple[int, float]]:
    """Yield numbers of points, and the error at held-out groups of fits to that many of the other points."""
    for share in CURVE:
        count = int(share * len(dataset))
        if count >= 3 * len(spec.place):
            random = np.random.default_rng(0)
            seconds = np.empty(len(dataset))
            for groups in np.array_split(random.permutation(np.unique(dataset.groups)), FOLDS):
                held_out = np.isin(dataset.groups, groups)
                few = random.permutation(np.flatnonzero(~held_out))[:count]
                if held_out.any():
                    fitted = fit(spec, candidate, [dataset.take(np.sort(few))], swept)
                    seconds[held_out] = fitted.predict(dataset.take(held_out))
            yield count, _error(seconds, dataset)


def _error(seconds: Array, dataset: Dataset) -> float:
    return float(np.mean(np.abs(seconds / dataset.seconds - 1)))


def save(path: Path, calibration: Calibration, command: str, files: Mapping[str, str]) -> None:
    """Write a profile, with the *command* that made it and the *files* it was fitted to.

    Raises ConfigError if the profile cannot be written.
    """
    entries = {part.name: part.efficiency for part in calibration.parts}
    with replacing(path) as new:
        profiled.save(new, calibration.gpu.name, command, entries, fitted_to=dict(files))


def check_writable(path: Path) -> None:
    """Raise ConfigError if no profile can be written to *path*, before minutes are spent on fitting."""
    if path.suffix != ENDING:
        raise ConfigError(str(path), f"is not a profile's name; choose one that ends in {ENDING}")
    if path.is_dir():
        raise ConfigError(str(path), "is a folder")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(str(path), f"cannot be written: {folder} is not a writable folder")


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
