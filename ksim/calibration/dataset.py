"""TODO"""

from collections.abc import Callable, Sequence

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ksim.calibration.measurements import CHECKS, SWEEP, Measurements
from ksim.oracles.efficiency.families import Constants, Family, Shapes
from ksim.oracles.efficiency.models import Model
from ksim.oracles.efficiency.physics import Array, Physics
from ksim.oracles.efficiency.pricing import inputs_of
from ksim.specs.hardware import Gpu


@frozen(eq=False)
class Lesson:
    """Measured points of one family on one `gpu`.

    A point runs one kernel of each of `parts` (columns, one entry a point) in
    turn; `others` are the seconds of what else was timed along, priced
    elsewhere.  `groups` numbers the points that say much the same, so that they
    are left out together; `checks` marks those that must teach nothing.
    """

    gpu: Gpu
    parts: tuple[Shapes, ...]
    seconds: Array
    others: Array
    groups: NDArray[np.int64]
    checks: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Measurements, gpu: Gpu, *parts: Shapes, groups: NDArray[np.int64],
           others: Array | None = None, checks: tuple[str, ...] = CHECKS) -> "Lesson":
        """The lesson of *rows* as *parts*; rows whose tag is one of *checks* must teach nothing."""
        return cls(gpu, parts, rows.seconds, np.zeros(len(rows)) if others is None else others, groups,
                   np.isin(rows.tags, checks))

    def __len__(self) -> int:
        return len(self.seconds)

    def sample(self, most: int, seed: int = 0) -> "Lesson":
        """At most so many points, drawn evenly."""
        if len(self) <= most:
            return self
        return self.take(np.sort(np.random.default_rng(seed).choice(len(self), most, replace=False)))

    def divisible(self) -> "Lesson":
        """This lesson, or, where all points that teach are of one group, with every point a group of its own."""
        if len(np.unique(self.groups[~self.checks])) > 1:
            return self
        return evolve(self, groups=np.arange(len(self)))

    def take(self, points: NDArray[np.bool_] | NDArray[np.intp]) -> "Lesson":
        parts = tuple({name: column[points] for name, column in part.items()} for part in self.parts)
        return Lesson(self.gpu, parts, self.seconds[points], self.others[points], self.groups[points],
                      self.checks[points])


def join(lessons: Sequence[Lesson]) -> Lesson:
    """The lessons of one GPU as one; groups of different lessons stay apart."""
    if len(lessons) == 1:
        return lessons[0]
    parts = tuple({name: np.concatenate([lesson.parts[i][name] for lesson in lessons]) for name in part}
                  for i, part in enumerate(lessons[0].parts))
    before = np.cumsum([0, *(lesson.groups.max(initial=-1) + 1 for lesson in lessons)])
    groups = [lesson.groups + start for lesson, start in zip(lessons, before[:-1], strict=True)]
    return Lesson(lessons[0].gpu, parts, np.concatenate([lesson.seconds for lesson in lessons]),
                  np.concatenate([lesson.others for lesson in lessons]), np.concatenate(groups),
                  np.concatenate([lesson.checks for lesson in lessons]))


@frozen(eq=False)
class Worked:
    """A lesson with its physics worked out for some constants."""

    lesson: Lesson
    family: Family
    physics: tuple[Physics, ...]

    @classmethod
    def out(cls, lesson: Lesson, family: Family, constants: Constants) -> "Worked":
        return cls(lesson, family, tuple(family.physics(lesson.gpu, part, constants) for part in lesson.parts))

    @property
    def reference(self) -> Array:
        """Seconds by physics alone, of the parts together."""
        return np.asarray(np.sum([each.seconds for each in self.physics], axis=0))

    @property
    def targets(self) -> Array:
        """The log efficiency that would make each point come out as measured.

        What was timed along may be priced above the whole: at least a tenth of it is the kernel's own.
        """
        own = np.maximum(self.lesson.seconds - self.lesson.others, 0.1 * self.lesson.seconds)
        targets: Array = np.log(own / self.reference)
        return targets

    def inputs(self, names: tuple[str, ...]) -> Array:
        """The first part's: features are chosen so that parts of one point have the same where they share a model."""
        return inputs_of(names, self.physics[0], self.family.features, self.lesson.parts[0])

    def predict(self, model: Model, names: tuple[str, ...]) -> Array:
        """Seconds of each point."""
        own = self.reference * np.exp(model(self.inputs(names)))
        seconds: Array = own + self.lesson.others
        return seconds


Mask = NDArray[np.bool_]


@frozen
class Rule:
    """Rows for which `holds` is true are meant, for the `reason` given."""

    reason: str
    holds: Callable[[Measurements], Mask]


def in_tables(rows: Measurements) -> Mask:
    """All rows or none: whether they come from a public table, which names a serving engine, and not from a sweep."""
    return np.full(len(rows), not rows.source.swept)


def of_vllm(reason: str) -> Rule:
    """Rows of a table that another engine than vLLM measured."""
    return Rule(reason, lambda rows: np.full(len(rows), rows.source.backend not in (SWEEP, "vllm")))


def alike(rows: Measurements, *columns: str) -> NDArray[np.int64]:
    """Number the rows by their values in *columns*."""
    values = np.stack([rows[name] for name in columns], axis=1)
    numbers: NDArray[np.int64] = np.unique(values, axis=0, return_inverse=True)[1].ravel()
    return numbers
