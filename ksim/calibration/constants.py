"""Fit the constants of a family's physics: those that no data sheet states."""

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import frozen

from ksim.calibration.fitting import library
from ksim.calibration.lessons import Lesson, Worked
from ksim.oracles.efficiency.families import Constants, Family
from ksim.oracles.efficiency.physics import Array

#: Errors of log time below this count as their square and not as themselves.
SOFT = 0.02
#: What it costs, in log error, to be off a first guess by a factor of e: holds constants that the data is silent about.
PENALTY = 2e-4
ROUNDS = 250


@frozen
class Free:
    """A constant to fit: its bounds, and a first guess made from data sheets and round numbers."""

    lowest: float
    guess: float
    highest: float


def fit_constants(family: Family, lessons: Sequence[Lesson], free: Mapping[str, Free],
                  held: Constants | None = None) -> dict[str, float]:
    """Least absolute error of log time over *lessons*, whose weight `shares` says; *held* are what is not free."""
    optimize = library("scipy.optimize")
    names = list(free)
    guess = np.log([free[name].guess for name in names])
    # A constant may be nothing at all: a thousandth of its guess stands for that.
    lowest = np.log([max(free[name].lowest, 1e-3 * free[name].guess) for name in names])
    highest = np.log([free[name].highest for name in names])
    logs = [np.log(lesson.seconds) for lesson in lessons]
    weights = shares(lessons)

    def constants(point: Array) -> dict[str, float]:
        return {**(held or {}), **dict(zip(names, np.exp(point).tolist(), strict=True))}

    def loss(point: Array) -> float:
        total = PENALTY * float(((point - guess) ** 2).sum())
        for lesson, log, weight in zip(lessons, logs, weights, strict=True):
            own = Worked.out(lesson, family, constants(point)).reference + lesson.others
            total += float(weight @ np.sqrt((np.log(own) - log) ** 2 + SOFT**2))
        return total

    found = optimize.minimize(loss, guess, method="L-BFGS-B", bounds=list(zip(lowest, highest, strict=True)),
                              options={"maxiter": ROUNDS})
    return constants(found.x)


def shares(lessons: Sequence[Lesson]) -> list[Array]:
    """The weight of each point: architectures count alike, so do GPUs of one and tables of a GPU; all add up to 1."""
    architectures = {lesson.gpu.architecture for lesson in lessons}
    weights = []
    for lesson in lessons:
        alike = [other for other in lessons if other.gpu.architecture == lesson.gpu.architecture]
        gpus = {other.gpu.name for other in alike}
        tables = sum(other.gpu.name == lesson.gpu.name for other in alike)
        weights.append(np.full(len(lesson), 1 / (len(architectures) * len(gpus) * tables * max(1, len(lesson)))))
    return weights
