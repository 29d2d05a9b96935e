"""The Pareto front: the outcomes that no other beats in one objective without losing in another."""

import re
from collections.abc import Sequence
from math import ceil

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ksim.foundation.errors import ConfigError, UnknownName
from ksim.simulation.grid import Outcome
from ksim.simulation.requirement import Requirement, measures

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: What a user waits for, queue and all, and what it costs: TTFT or TPOT alone can be had at the other's expense.
DEFAULT = ("joules_per_output_token", "median_e2el_ms")
#: The share of requests that a point may reject by default.  So few change no objective by much; more would look cheap.
TOLERATED = 0.01
#: Why a point does not count whose load was too high.
SATURATED = "saturated: its queue kept growing, so its latencies depend on how long the run was"


@frozen
class Objective:
    """A number of summary.json, of which less is better, or more."""

    key: str
    maximise: bool = False

    @classmethod
    def parse(cls, text: str) -> "Objective":
        """Parse ``key``, or ``max:key`` or ``-key`` for what should be large; raises UnknownName."""
        key = re.sub("^(-|max:|min:)", "", text)
        if key not in (known := measures()):
            raise UnknownName("objective", key, known)
        return cls(key, text.startswith(("-", "max:")))

    def __str__(self) -> str:
        return f"max:{self.key}" if self.maximise else self.key

    def cost(self, value: float) -> float:
        """*value* as something of which less is better."""
        return -value if self.maximise else value


@frozen
class Point:
    """An outcome among others: `values` are its objectives, none where it has not all of them.

    `problem` says why the point does not count; it may have values still.  Points are numbered from 1, those on the
    front first; `beaten_by` is the first of these that is better, and None for a point of the front and for one that
    does not count.
    """

    number: int
    outcome: Outcome
    values: tuple[float, ...] = ()
    beaten_by: int | None = None
    problem: str = ""

    @property
    def on_front(self) -> bool:
        """Whether it counts and nothing beats it."""
        return not self.problem and self.beaten_by is None


def objectives(texts: Sequence[str]) -> list[Objective]:
    """The objectives that *texts* name, or the default ones; raises UnknownName, and ConfigError where one comes twice.
    """
    named = [Objective.parse(text) for text in texts or DEFAULT]
    keys = [objective.key for objective in named]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ConfigError("--objective", f"{twice[0]} comes twice; name each objective once")
    return named


def front(costs: Floats) -> Bools:
    """Which rows of *costs* (points x objectives, less is better) no other row dominates; equal rows stay together.

    A row dominates another if it is nowhere larger and somewhere smaller.
    """
    return ~np.array([_dominates(costs, row).any() for row in costs], dtype=bool)


def judge(found: Sequence[Outcome], wanted: Sequence[Objective], required: Sequence[Requirement] = (),
          tolerated: float = TOLERATED) -> list[Point]:
    """The points in order: the front by the first objective, then those it beats, then those that do not count.

    A point counts that has all objectives, keeps to what is *required*, kept up with its load, and rejected no more
    than the *tolerated* share of its requests.
    """
    problems = [_problem(each, wanted, required, tolerated) for each in found]
    judged = [each for each, problem in zip(found, problems, strict=True) if not problem]
    left = [Point(0, each, _values(each, wanted), problem=problem)
            for each, problem in zip(found, problems, strict=True) if problem]
    left.sort(key=lambda point: not point.values)
    return [evolve(point, number=number) for number, point in enumerate([*_ranked(judged, wanted), *left], 1)]


def refusal(points: Sequence[Point]) -> str:
    """Why no point is on the front; "" where one is."""
    if any(point.on_front for point in points):
        return ""
    return f"none of {len(points)} points counts: {first_of([point.problem for point in points])}{_advice(points)}"


def first_of(reasons: Sequence[str]) -> str:
    """The first of *reasons*, and how many others there are."""
    others = len(set(reasons)) - 1
    return reasons[0] + (f" (and {others} other {'reason' if others == 1 else 'reasons'})" if others else "")


def _advice(points: Sequence[Point]) -> str:
    """What would let points count that reject too many requests, or that none keeps up with."""
    if all(point.problem == SATURATED for point in points):
        return "; lower the rate of requests, or try more GPUs"
    shares = [point.outcome.unserved_share for point in points if point.problem == point.outcome.unserved]
    return f"; --max-rejected {ceil(1000 * min(shares)) / 1000:g} would let the best of them count" if shares else ""


def _ranked(judged: Sequence[Outcome], wanted: Sequence[Objective]) -> list[Point]:
    """Points of the front, which are to have the numbers from 1, and then all others."""
    values = [_values(each, wanted) for each in judged]
    costs = np.array([[objective.cost(value) for objective, value in zip(wanted, row, strict=True)] for row in values])
    costs = costs.reshape(len(values), len(wanted))  # also where there are none
    best = front(costs)
    order = sorted(range(len(judged)), key=lambda row: (not best[row], *costs[row]))
    leading = costs[[row for row in order if best[row]]]
    beaten = [None if best[row] else int(np.argmax(_dominates(leading, costs[row]))) + 1 for row in order]
    return [Point(0, judged[row], values[row], by) for row, by in zip(order, beaten, strict=True)]


def _dominates(costs: Floats, row: Floats) -> Bools:
    """Which of *costs* dominate *row*."""
    return np.asarray((costs <= row).all(axis=1) & (costs < row).any(axis=1))


def _problem(each: Outcome, wanted: Sequence[Objective], required: Sequence[Requirement], tolerated: float) -> str:
    """Why a point does not count; "" where it does."""
    if each.problem or each.summary is None:
        return each.problem
    if each.unserved_share > tolerated:
        return each.unserved
    if each.summary.get("saturated"):
        return SATURATED
    missing = [f"nothing in the run tells {objective.key}" for objective in wanted
               if each.summary[objective.key] is None]
    missed = [reason for requirement in required if (reason := requirement.missed(each.summary))]
    return "; ".join(missing[:1] or missed)


def _values(each: Outcome, wanted: Sequence[Objective]) -> tuple[float, ...]:
    """The objectives of a point, or nothing where one is unknown."""
    values = [(each.summary or {}).get(objective.key) for objective in wanted]
    return () if None in values else tuple(float(value) for value in values if value is not None)
