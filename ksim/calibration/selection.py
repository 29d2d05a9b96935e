"""Which rows of measurements a course looks at, and which it leaves out and why."""

from collections.abc import Iterator, Sequence

import numpy as np
from attrs import field, frozen

from ksim.calibration.courses import Course
from ksim.calibration.lessons import Lesson
from ksim.calibration.measurements import Measurements
from ksim.specs.hardware import Gpu


@frozen
class Left:
    """So many rows were left out, for this reason."""

    reason: str
    rows: int


@frozen(eq=False)
class Selected:
    """A GPU's rows as lessons: those that teach (`core`), those that only tell how far that carries, and those left."""

    gpu: Gpu
    rows: tuple[Measurements, ...]
    core: tuple[Lesson, ...]
    beside: tuple[Lesson, ...]
    left: tuple[Left, ...] = field(factory=tuple)


def select(course: Course, rows: Sequence[Measurements], gpu: Gpu) -> Selected:
    """Apply the rules of *course* to a GPU's *rows*."""
    left: dict[str, int] = {}
    core, beside, kept = [], [], []
    for table in rows:
        usable = _kept(course, table, left)
        inside = course.core.holds(usable) if course.core else np.ones(len(usable), dtype=np.bool_)
        if inside.any():
            kept.append(usable.take(inside))
            core.append(course.lesson(kept[-1], gpu))
        if not inside.all():
            beside.append(course.lesson(usable.take(~inside), gpu))
    return Selected(gpu, tuple(kept), tuple(core), tuple(beside),
                    tuple(Left(reason, count) for reason, count in left.items()))


def _kept(course: Course, table: Measurements, left: dict[str, int]) -> Measurements:
    for rule in course.rules:
        out = rule.holds(table)
        if out.any():
            left[rule.reason] = left.get(rule.reason, 0) + int(out.sum())
            table = table.take(~out)
    return table


def by_gpu(rows: Sequence[Measurements]) -> Iterator[tuple[str, list[Measurements]]]:
    """The measurements of each GPU that the catalogue has, by its name there."""
    for name in sorted({part.gpu for part in rows if part.gpu}):
        yield name, [part for part in rows if part.gpu == name]
