"""Efficiencies for GPUs that nobody measured, learned from those that somebody did."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from attrs import frozen

from ksim.calibration.courses import Course, Taught, efficiency, teach
from ksim.calibration.lessons import Lesson
from ksim.oracles.efficiency.physics import Array
from ksim.oracles.efficiency.profile import Efficiency
from ksim.oracles.efficiency.profiled import without

#: By how much errors grow on GPUs of another architecture than the one that taught: what quantisation, of which eight
#: GPUs are known, errs on other architectures over what it errs on its own.
STRANGER = 2.0
#: A new architecture has a bias of its own: intervals from errors at the known ones must be so much wider for nine of
#: ten measurements to lie in them, as found by leaving each out (81 % lie in them as they are).
NEWCOMER = 1.35
#: Rows of a GPU's table that intervals and regions are taken from.
_ROWS = 3000


@frozen(eq=False)
class Learned:
    """What all lessons teach; what those of all architectures but one do, by the one left out; and but two."""

    everything: Taught
    leaving_out: Mapping[str, Taught]
    leaving_two: Mapping[frozenset[str], Taught]


def learn(course: Course, lessons: Sequence[Lesson]) -> Learned:
    """Fit to all of *lessons*, once for each architecture without it, and once for each two without both."""
    architectures = sorted({lesson.gpu.architecture for lesson in lessons})

    def leaving(*out: str) -> Taught:
        return teach(course, course.learned, [each for each in lessons if each.gpu.architecture not in out])

    one = {left: leaving(left) for left in architectures} if len(architectures) > 1 else {}
    pairs = combinations(architectures, 2) if len(architectures) > 2 else ()
    return Learned(leaving(), one, {frozenset(pair): leaving(*pair) for pair in pairs})


def efficiencies(course: Course, lessons: Sequence[Lesson], learned: Learned, source: str) -> dict[str, Efficiency]:
    """What a profile keeps: one for GPUs of new architectures, and one for each known architecture.

    The intervals of the one that leaves an architecture out come from the errors at the others, each of them left out
    in its turn: the architecture itself has no part in them.
    """
    lessons = [lesson.sample(_ROWS) for lesson in lessons]
    if not learned.leaving_out:
        return {course.name: _of_one(course, lessons, learned.everything, source)}
    missed = [_missed(learned.leaving_out[lesson.gpu.architecture], lesson) for lesson in lessons]
    kept = {course.name: efficiency(learned.everything, lessons, missed, source, NEWCOMER)}
    for left, taught in learned.leaving_out.items():
        others = [lesson for lesson in lessons if lesson.gpu.architecture != left]
        # Where a single architecture is left to learn from, errors are those at itself.
        widening = NEWCOMER if learned.leaving_two else STRANGER
        strangers = [learned.leaving_two.get(frozenset((left, lesson.gpu.architecture)), taught) for lesson in others]
        errors = [_missed(stranger, lesson) for stranger, lesson in zip(strangers, others, strict=True)]
        kept[without(course.name, left)] = efficiency(taught, others, errors, source, widening)
    return kept


def _of_one(course: Course, lessons: Sequence[Lesson], taught: Taught, source: str) -> Efficiency:
    """Where a single architecture taught: intervals are those of its own points, grown for strangers."""
    return efficiency(taught, lessons, [_missed(taught, lesson) for lesson in lessons],
                      f"{source}; of one architecture, intervals doubled for others", STRANGER)


def _missed(taught: Taught, lesson: Lesson) -> Array:
    missed: Array = np.log(lesson.seconds / taught.predict(lesson))
    return missed


