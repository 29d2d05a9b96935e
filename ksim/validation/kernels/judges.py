"""Predict measured rows, in each of the ways that a calibrated oracle can be judged."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ksim.calibration.courses import Course, Taught, examine
from ksim.calibration.kernels import kernels
from ksim.calibration.learning import efficiencies, learn
from ksim.calibration.lessons import Lesson, join
from ksim.calibration.measurements import Measurements
from ksim.calibration.selection import Selected
from ksim.oracles import estimate
from ksim.oracles.efficiency.physics import Array
from ksim.oracles.efficiency.profile import Efficiency
from ksim.oracles.efficiency.profiled import Profiled
from ksim.specs.hardware import Gpu
from ksim.validation.kernels.cells import Judged

#: Rows of a cell that are priced one by one, where an oracle knows kernels and no tables.
ONE_BY_ONE = 400


def by_profile(profiled: Profiled, course: Course, rows: Measurements, lesson: Lesson, how: str) -> Judged | None:
    """As the oracle prices them; None where the profile has nothing to say."""
    names = (course.name, *course.like)
    total = np.stack([lesson.others] * 3)
    for part in lesson.parts:
        priced = profiled.price(course.family, names, part, lesson.gpu)
        if priced is None:
            return None
        prices = priced[2]
        total = total + np.stack([prices.seconds, prices.low, prices.high])
    return judged(rows, lesson.gpu, how, total)


def by_holding_out(course: Course, rows: Sequence[Measurements], lessons: Sequence[Lesson]) -> Iterator[Judged]:
    """As a profile fitted to these very rows would, but each part of them left out in turn; checks by the whole fit."""
    lesson, swept = join(lessons).divisible(), rows[0].source.swept
    found = examine(course, lesson, swept)
    predicted = found.taught.predict(lesson)
    predicted[~lesson.checks] = found.seconds
    start = 0
    for part, own in zip(rows, lessons, strict=True):
        here = slice(start, start + len(own))
        low, high = _interval(found.taught, found.efficiency, own)
        table = np.stack([predicted[here], predicted[here] * low, predicted[here] * high])
        for how, of in (("held out", ~own.checks), ("check", own.checks)):
            if of.any():
                yield judged(part.take(of), own.gpu, how, table[:, of])
        start += len(own)


def by_others(course: Course, lessons: Sequence[Lesson], targets: Sequence[tuple[Measurements, Lesson]],
              how: str) -> Iterator[Judged]:
    """As learned from *lessons*, of other GPUs, alone."""
    learned = learn(course, lessons)
    fitted = efficiencies(course, lessons, learned, "")[course.name]
    for rows, lesson in targets:
        yield judged(rows, lesson.gpu, how, _priced(learned.everything, fitted, lesson))


def by_grid(course: Course, selected: Selected) -> Iterator[Judged]:
    """As fitted to the few rows that a sweep would have measured; judged at all others."""
    assert course.grid is not None
    grids = [course.grid(rows) for rows in selected.rows]
    lesson = join([own.take(grid) for own, grid in zip(selected.core, grids, strict=True)]).divisible()
    found = examine(course, lesson, swept=False, folds=3)
    share = len(lesson) / sum(len(rows) for rows in selected.rows)
    for rows, own, grid in zip(selected.rows, selected.core, grids, strict=True):
        rest = own.take(~grid)
        yield judged(rows.take(~grid), own.gpu, f"from {share:.1%} of the rows",
                     _priced(found.taught, found.efficiency, rest))


def one_by_one(oracle: Any, rows: Measurements, lesson: Lesson, how: str) -> Judged:
    """As any oracle prices kernels; of many rows, a sample."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:ONE_BY_ONE])
    sample, others = rows.take(chosen), lesson.others[chosen]
    found = [[estimate(oracle, kernel, lesson.gpu) for kernel in kernels(sample, i)] for i in range(len(sample))]
    table = np.array([[sum(getattr(each, name) for each in point) for point in found]
                      for name in ("seconds", "low", "high")])
    return judged(sample, lesson.gpu, how, table + others * (len(lesson.parts) == 1))


def judged(rows: Measurements, gpu: Gpu, how: str, table: Array) -> Judged:
    """*table* has the seconds, and the ends of their intervals."""
    return Judged(rows.gpu or gpu.name, _family(rows), rows, how, *table)


def _family(rows: Measurements) -> str:
    """Attention's tables are two: of prompts, and of generation."""
    if rows.family == "attention" and not rows.source.swept:
        return "attention_context" if (rows.tags == "prefill").all() else "attention_generation"
    return rows.family


def _interval(taught: Taught, fitted: Efficiency, lesson: Lesson) -> tuple[Array, Array]:
    """Factors from an estimate to the ends of its interval."""
    place = taught.place(lesson)
    low, high = fitted.spread.interval(place, fitted.region.beyond(place))
    return np.exp(low), np.exp(high)


def _priced(taught: Taught, fitted: Efficiency, lesson: Lesson) -> Array:
    seconds, (low, high) = taught.predict(lesson), _interval(taught, fitted, lesson)
    own = seconds - lesson.others
    return np.stack([seconds, own * low + lesson.others, own * high + lesson.others])
