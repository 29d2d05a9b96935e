"""TODO"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import frozen

from ksim.calibration.checks import FEWEST, Checked, TooFew, check
from ksim.calibration.dataset import Lesson, join
from ksim.calibration.fitting import FOLDS, Candidate, Course, Left, Selected, examine, select, teach
from ksim.calibration.measurements import COLLECTIVES, Measurements, joined
from ksim.calibration.recipes import COURSES, enrolled
from ksim.foundation.errors import ConfigError, DataError
from ksim.oracles.efficiency.physics import Array
from ksim.oracles.efficiency.profile import Efficiency, save
from ksim.specs.hardware import Gpu

#: Shares of the points by which a learning curve asks what fewer would have done.
CURVE = (0.125, 0.25, 0.5)
#: Of a table with more points than this, so many are fitted to.
MOST = 6000
#: As many points are enough as leave an error no more than this above that of all.
ENOUGH = 1.15


@frozen
class Calibrated:
    """One family's part of a profile, and what there is to say about it.

    `error` and `bias` are of points held back in turn, a share of the time;
    `curve` has the error of fits to fewer points; `checks` the error at each tag
    whose points taught nothing.
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
        """The fewest points that would have done nearly as well."""
        return next((points for points, error in self.curve if error <= ENOUGH * self.error), self.points)


@frozen
class Calibration:
    """All parts, what was left out and why, and measurements that no course takes."""

    gpu: Gpu
    parts: tuple[Calibrated, ...]
    left: tuple[Left, ...]
    remarks: tuple[str, ...]


def calibrate(measured: Sequence[Measurements], gpu: Gpu, say: Callable[[str], None] = lambda _: None) -> Calibration:
    """Fit every family that *measured*, all of *gpu*, has enough points of; raises DataError where none has."""
    parts: list[Calibrated] = []
    left: list[Left] = []
    remarks: list[str] = []
    courses = list(enrolled(measured))
    for course, taken in courses:
        checked = [each.kept for each in _checked(_of_one_kind(taken, remarks), gpu, remarks)]
        selected = select(course, list(_by_source(checked)), gpu)
        left += selected.left
        if selected.beside and course.core:
            left.append(Left(f"{course.name}: not core ({course.core.reason})", sum(map(len, selected.beside))))
        if _suffices(course, selected, remarks):
            say(course.name)
            parts.append(_part(course, selected, remarks))
    known = {id(rows) for _, taken in courses for rows in taken}
    remarks += _untaught([rows for rows in measured if id(rows) not in known])
    if not parts:
        raise DataError(measured[0].source.file if measured else "sweep",
                        "; ".join(["has no family with enough points to calibrate", *remarks]))
    return Calibration(gpu, tuple(parts), tuple(left), tuple(remarks))


def _of_one_kind(taken: Sequence[Measurements], remarks: list[str]) -> list[Measurements]:
    """A sweep's rows where there are any: those of tables were timed in another way, and are not mixed with them."""
    swept = [rows for rows in taken if rows.source.swept]
    for rows in taken if swept else ():
        if not rows.source.swept:
            remarks.append(f"{rows.source.file}: {len(rows):,} rows of {rows} are of a table that was timed in another "
                           f"way than {swept[0].source.file}, and are left out; calibrate from one of the two")
    return swept or [*taken]


def _by_source(checked: Sequence[Measurements]) -> Iterator[Measurements]:
    """As one what several files have from one source, so that copies of a shape are left out together."""
    found: dict[tuple[str, ...], list[Measurements]] = {}
    for rows in checked:
        source = rows.source
        found.setdefault((source.backend, source.version, source.kernel, source.timing), []).append(rows)
    yield from map(joined, found.values())


def _checked(taken: Sequence[Measurements], gpu: Gpu, remarks: list[str]) -> Iterator[Checked]:
    for rows in taken:
        try:
            checked = check(rows, gpu)
        except TooFew as few:
            remarks.append(str(few))
            continue
        remarks += checked.remarks()
        yield checked


def _suffices(course: Course, selected: Selected, remarks: list[str]) -> bool:
    """Whether enough is left that may teach."""
    teaching = sum(int((~lesson.checks).sum()) for lesson in selected.core)
    if selected.core and teaching < FEWEST:
        remarks.append(f"{course.name}: {teaching} points that may teach cannot calibrate it; measure {FEWEST} or more")
    elif not selected.core and selected.left:
        remarks.append(f"{course.name}: all of its rows are left out")
    return teaching >= FEWEST


def _untaught(measured: Sequence[Measurements]) -> Iterator[str]:
    """What to do with rows that no course takes, a sentence for each file."""
    found: dict[tuple[str, bool], list[Measurements]] = {}
    for rows in measured:
        found.setdefault((rows.source.file, rows.family in COLLECTIVES), []).append(rows)
    for (file, collectives), parts in found.items():
        names = ", ".join(dict.fromkeys(rows.family if collectives else str(rows) for rows in parts))
        yield (f"{file}: {sum(map(len, parts)):,} rows of {names} were read, but a profile holds " + (
            "kernels only; what collectives take is said by the files of ksim/data/transports that a system names"
            if collectives else f"nothing of them (it may hold {', '.join(course.name for course in COURSES)})"))


def _part(course: Course, selected: Selected, remarks: list[str]) -> Calibrated:
    rows, joint = selected.rows, join(selected.core)
    swept = rows[0].source.swept
    candidate = course.sweep if swept else course.table
    kept = joint.take(~joint.checks).sample(MOST).divisible()
    if len(np.unique(joint.groups[~joint.checks])) == 1:
        remarks.append(f"{course.name}: all points are of one group, such as one width or head shape; errors and "
                       f"intervals are of points left out one by one, and too good for other groups")
    source = f"{len(kept):,} points of {rows[0].source.file.rpartition('/')[2]}"
    found = examine(course, kept, swept, source)
    tags = np.concatenate([each.tags for each in rows])
    checks = tuple((str(tag), int(of.sum()), _error(found.taught.predict(joint.take(of)), joint.take(of)))
                   for tag in np.unique(tags[joint.checks]) for of in [joint.checks & (tags == tag)])
    return Calibrated(course.name, found.efficiency, len(kept), _error(found.seconds, found.kept),
                      float(np.mean(found.seconds / found.kept.seconds - 1)),
                      tuple(_curve(course, candidate, found.kept, swept)), checks)


def _curve(course: Course, candidate: Candidate, lesson: Lesson, swept: bool) -> Iterator[tuple[int, float]]:
    """The error at groups of points held back, of fits to some of the other points: asked like that of all points."""
    for share in CURVE:
        count = int(share * len(lesson))
        if count >= 3 * len(course.place):
            random = np.random.default_rng(0)
            seconds = np.empty(len(lesson))
            for groups in np.array_split(random.permutation(np.unique(lesson.groups)), FOLDS):
                out = np.isin(lesson.groups, groups)
                few = random.permutation(np.flatnonzero(~out))[:count]
                if out.any():
                    taught = teach(course, candidate, [lesson.take(np.sort(few))], swept)
                    seconds[out] = taught.predict(lesson.take(out))
            yield count, _error(seconds, lesson)


def _error(seconds: Array, lesson: Lesson) -> float:
    return float(np.mean(np.abs(seconds / lesson.seconds - 1)))


ENDING = ".npz"


def keep(path: Path, calibration: Calibration, command: str, files: Mapping[str, str]) -> None:
    """Write a profile that says it was made by *command* from *files*; raises ConfigError if it cannot be written.

    An interruption leaves the file that was there.
    """
    part = path.with_name(f".{path.name}.part")
    entries = {each.name: each.efficiency for each in calibration.parts}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(part, calibration.gpu.name, command, entries, fitted_to=dict(files))
        part.replace(path)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written: {error.strerror or error}") from None
    finally:
        if part.exists():
            part.unlink()


def check_place(path: Path) -> None:
    """Raise ConfigError where no profile can be written to *path*: sooner than after minutes of fitting."""
    if path.suffix != ENDING:
        raise ConfigError(str(path), f"is no name of a profile; choose one that ends in {ENDING}")
    if path.is_dir():
        raise ConfigError(str(path), "is a folder")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(str(path), f"cannot be written: {folder} is no folder that may be written to")
