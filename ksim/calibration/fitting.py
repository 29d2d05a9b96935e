"""TODO"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from ksim.calibration.dataset import Lesson, Mask, Rule, Worked
from ksim.calibration.measurements import Measurements
from ksim.calibration.regression import Free, fit_constants, shares
from ksim.oracles.efficiency.families import FAMILIES, Constants, Family
from ksim.oracles.efficiency.models import Model
from ksim.oracles.efficiency.physics import Array
from ksim.oracles.efficiency.profile import Efficiency
from ksim.oracles.efficiency.region import Region
from ksim.oracles.efficiency.spread import Spread
from ksim.specs.hardware import Gpu

#: Into how many parts points are divided that are left out in turn.
FOLDS = 5
#: How much wider intervals are than what held-back groups of a grid miss: kernels of models lie off the grid.
OFF_GRID = 1.25
#: Points of a table that constants are fitted to where several GPUs share them, and where they are one GPU's own;
#: and the most that a model on top of them is fitted to.
SHARED, OWN, MODELLED = 600, 2000, 8000


@frozen
class Candidate:
    """A kind of model on top of the physics, and the inputs that it looks at."""

    recipe: Recipe
    inputs: tuple[str, ...] = ()


@frozen(kw_only=True)
class Course:
    """How the efficiency `name`, such as ``gemm/bf16``, is learned from measurements of `measures` in `dtype`.

    `free` constants of the physics are fitted first, then a model on what they
    leave: `learned` where the target GPU is not among the lessons, `table` or
    `sweep` where it is all of them, by where the lesson comes from.  Constants
    that are `held` are not fitted, unless they are in `own` and the lessons are
    of one GPU; a sweep holds those in `swept`.

    `lesson` makes columns of measurements.  `rules` leave rows out everywhere;
    only rows that are `core` teach.  `grid` marks the few rows of a table that
    a sweep would measure.  `place` are the inputs that tell what lies among the
    lessons, the first of which is the one by which intervals differ.  `like` names
    courses that speak of these kernels where nothing else does.
    """

    name: str
    family: Family
    measures: str
    dtype: str
    lesson: Callable[[Measurements, Gpu], Lesson]
    free: Mapping[str, Free]
    learned: Candidate
    table: Candidate
    sweep: Candidate
    place: tuple[str, ...]
    rules: Sequence[Rule] = ()
    core: Rule | None = None
    grid: Callable[[Measurements], Mask] | None = None
    like: tuple[str, ...] = ()
    held: Constants = field(factory=dict)
    own: Mapping[str, Free] = field(factory=dict)
    swept: Constants = field(factory=dict)

    @classmethod
    def of(cls, name: str, family: str, **rest: Any) -> "Course":
        return cls(name=name, family=FAMILIES[family], **rest)

    def takes(self, rows: Measurements) -> bool:
        return (rows.family, rows.dtype) == (self.measures, self.dtype)


@frozen(eq=False)
class Taught:
    """What came out: constants of the physics and the model on top."""

    course: Course
    candidate: Candidate
    constants: Mapping[str, float]
    model: Model

    def predict(self, lesson: Lesson) -> Array:
        """Seconds of each point."""
        return Worked.out(lesson, self.course.family, self.constants).predict(self.model, self.candidate.inputs)

    def place(self, lesson: Lesson) -> Array:
        return Worked.out(lesson, self.course.family, self.constants).inputs(self.course.place)


def teach(course: Course, candidate: Candidate, lessons: Sequence[Lesson], swept: bool = False) -> Taught:
    """Fit to all of *lessons*, but for points that are checks."""
    several = len({lesson.gpu.name for lesson in lessons}) > 1
    taught = [lesson.take(~lesson.checks) for lesson in lessons]
    sampled = [lesson.sample(SHARED if several else OWN) for lesson in taught]
    held = {**course.held, **(course.swept if swept else {})}
    free = {name: free for name, free in course.free.items() if name not in held}
    if not several:
        free.update(course.own)
    constants = fit_constants(course.family, sampled, free, held)
    taught = sampled if several else [lesson.sample(MODELLED) for lesson in taught]
    worked = [Worked.out(lesson, course.family, constants) for lesson in taught]
    inputs = np.concatenate([each.inputs(candidate.inputs) for each in worked])
    targets = np.concatenate([each.targets for each in worked])
    return Taught(course, candidate, constants, candidate.recipe.fit(inputs, targets, np.concatenate(shares(taught))))


def held_out(course: Course, candidate: Candidate, lesson: Lesson, swept: bool = False,
             folds: int = FOLDS) -> tuple[Lesson, Array]:
    """The points that may teach, and the seconds predicted for each by a fit to other groups of them."""
    lesson = lesson.take(~lesson.checks)
    seconds = np.full(len(lesson), np.nan)
    for out in _folds(lesson.groups, folds):
        seconds[out] = teach(course, candidate, [lesson.take(~out)], swept).predict(lesson.take(out))
    return lesson, seconds


def _folds(groups: NDArray[np.int64], folds: int) -> Iterator[Mask]:
    """Masks of the points left out: whole groups, dealt into *folds* of about the same number of points."""
    names, counts = np.unique(groups, return_counts=True)
    hands = np.zeros(min(folds, len(names)), dtype=np.int64)
    dealt: dict[int, int] = {}
    for place in np.argsort(-counts, kind="stable"):
        least = int(hands.argmin())
        dealt[int(names[place])] = least
        hands[least] += counts[place]
    of = np.array([dealt[int(group)] for group in groups])
    for fold in range(len(hands)):
        yield of == fold


def efficiency(taught: Taught, lessons: Sequence[Lesson], missed: Sequence[Array], source: str,
               widening: float = 1.0) -> Efficiency:
    """What a profile keeps; *missed* are, for each lesson, logs of measured over held-out predicted seconds.

    Intervals are made so much wider than what was missed.
    """
    place = np.concatenate([taught.place(lesson) for lesson in lessons])
    residuals, weights = np.concatenate(missed), np.concatenate(shares(lessons))
    spread = Spread.of(widening * residuals, place, column=0, weights=weights)
    error = float(np.average(np.abs(np.exp(-residuals) - 1), weights=weights))
    return Efficiency(taught.constants, taught.candidate.inputs, taught.model, taught.course.place,
                      Region.around(place), spread, len(residuals), error, source)


@frozen(eq=False)
class Examined:
    """A GPU's own lesson taught, and the seconds that fits to other groups predict for the points `kept`."""

    taught: Taught
    kept: Lesson
    seconds: Array
    efficiency: Efficiency


def examine(course: Course, lesson: Lesson, swept: bool, source: str = "", folds: int = FOLDS) -> Examined:
    """Fit to a GPU's own points, and find how far off that is by holding groups of them out."""
    candidate = course.sweep if swept else course.table
    taught = teach(course, candidate, [lesson], swept)
    kept, seconds = held_out(course, candidate, lesson, swept, folds)
    missed = np.log(kept.seconds / seconds)
    return Examined(taught, kept, seconds, efficiency(taught, [kept], [missed], source, OFF_GRID if swept else 1.0))


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
