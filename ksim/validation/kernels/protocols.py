"""Protocols: the ways to predict measured rows with a calibrated oracle that has seen some, all or none of them."""

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
from ksim.oracles.efficiency.estimates import Profiled
from ksim.oracles.efficiency.physics import Array
from ksim.oracles.efficiency.profile import Efficiency
from ksim.specs.hardware import Gpu
from ksim.validation.kernels.cells import PredictedRows

#: How many rows of a table are priced where an oracle prices kernels one by one.
ONE_BY_ONE = 400


def predict_by_profile(profiled: Profiled, course: Course, rows: Measurements, lesson: Lesson,
                       how: str) -> PredictedRows | None:
    """Predict *rows* as the oracle prices them; None where the profile does not have this family."""
    names = (course.name, *course.like)
    total = np.stack([lesson.others] * 3)
    for part in lesson.parts:
        priced = profiled.price(course.family, names, part, lesson.gpu)
        if priced is None:
            return None
        prices = priced[2]
        total = total + np.stack([prices.seconds, prices.low, prices.high])
    return _predicted_rows(rows, lesson.gpu, how, total)


def predict_held_out(course: Course, rows: Sequence[Measurements],
                     lessons: Sequence[Lesson]) -> Iterator[PredictedRows]:
    """Predict the rows that a profile is fitted to, each part by a fit without it, and check rows by the whole fit."""
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
                yield _predicted_rows(part.take(of), own.gpu, how, table[:, of])
        start += len(own)


def predict_from_others(course: Course, lessons: Sequence[Lesson], targets: Sequence[tuple[Measurements, Lesson]],
                        how: str) -> Iterator[PredictedRows]:
    """Predict *targets* by what was learned from *lessons* of other GPUs alone."""
    learned = learn(course, lessons)
    fitted = efficiencies(course, lessons, learned, "")[course.name]
    for rows, lesson in targets:
        yield _predicted_rows(rows, lesson.gpu, how, _priced(learned.everything, fitted, lesson))


def predict_from_grid(course: Course, selected: Selected) -> Iterator[PredictedRows]:
    """Predict all rows by a fit to the few that a sweep would have measured."""
    assert course.grid is not None
    grids = [course.grid(rows) for rows in selected.rows]
    lesson = join([own.take(grid) for own, grid in zip(selected.core, grids, strict=True)]).divisible()
    found = examine(course, lesson, swept=False, folds=3)
    share = len(lesson) / sum(len(rows) for rows in selected.rows)
    for rows, own, grid in zip(selected.rows, selected.core, grids, strict=True):
        rest = own.take(~grid)
        yield _predicted_rows(rows.take(~grid), own.gpu, f"from {share:.1%} of the rows",
                     _priced(found.taught, found.efficiency, rest))


def predict_one_by_one(oracle: Any, rows: Measurements, lesson: Lesson, how: str) -> PredictedRows:
    """Predict a sample of *rows* with an oracle that prices kernels one by one."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:ONE_BY_ONE])
    sample, others = rows.take(chosen), lesson.others[chosen]
    found = [[estimate(oracle, kernel, lesson.gpu) for kernel in kernels(sample, i)] for i in range(len(sample))]
    table = np.array([[sum(getattr(each, name) for each in point) for point in found]
                      for name in ("seconds", "low", "high")])
    return _predicted_rows(sample, lesson.gpu, how, table + others * (len(lesson.parts) == 1))


def _predicted_rows(rows: Measurements, gpu: Gpu, how: str, table: Array) -> PredictedRows:
    """*rows* with the predictions in *table*: seconds, and the ends of their intervals."""
    return PredictedRows(rows.gpu or gpu.name, _family(rows), rows, how, *table)


def _family(rows: Measurements) -> str:
    """The family of *rows*; public tables of attention are two, of prompts and of generation."""
    if rows.family == "attention" and not rows.source.swept:
        return "attention_context" if (rows.tags == "prefill").all() else "attention_generation"
    return rows.family


def _interval(taught: Taught, fitted: Efficiency, lesson: Lesson) -> tuple[Array, Array]:
    """The factors from an estimate to the ends of its interval."""
    place = taught.place(lesson)
    low, high = fitted.spread.interval(place, fitted.region.beyond(place))
    return np.exp(low), np.exp(high)


def _priced(taught: Taught, fitted: Efficiency, lesson: Lesson) -> Array:
    seconds, (low, high) = taught.predict(lesson), _interval(taught, fitted, lesson)
    own = seconds - lesson.others
    return np.stack([seconds, own * low + lesson.others, own * high + lesson.others])
