"""The goals of a study: numbers of summary.json to minimise or maximise, bounds on them, and the Pareto front.

The front are the outcomes that no other beats in one objective without losing in another.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from math import ceil, isfinite
from typing import Any

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ksim.foundation.errors import ConfigError, UnknownName
from ksim.results.numbers import LESS, MORE, NUMBERS, derived
from ksim.study.experiment import Outcome
from ksim.views.wording import number

_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_REQUIREMENT = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*([^\s<>=]+)\s*")


@frozen
class Objective:
    """A number of a run to minimise, or to maximise."""

    key: str
    maximise: bool = False

    @classmethod
    def parse(cls, text: str) -> "Objective":
        """Parse ``key``, which shall get better, ``max:key`` (or ``-key``) or ``min:key``.

        Raises UnknownName, and ConfigError for a key alone of which neither more nor less is better.
        """
        key = re.sub("^(-|max:|min:)", "", text)
        if key not in NUMBERS:
            raise UnknownName("objective", key, NUMBERS)
        if key == text and not NUMBERS[key].better:
            raise ConfigError("objective", f"neither more nor less of {key} is better; say min:{key} or max:{key}")
        return cls(key, NUMBERS[key].better == MORE if key == text else not text.startswith("min:"))

    def __str__(self) -> str:
        if self.maximise:
            return f"max:{self.key}"
        return self.key if NUMBERS[self.key].better == LESS else f"min:{self.key}"

    def cost(self, value: float) -> float:
        """*value* as a cost, of which less is better."""
        return -value if self.maximise else value


@frozen
class Requirement:
    """A bound on a number of a run: ``key sign bound``, where `sign` is <, <=, > or >=."""

    key: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str, flag: str = "--require") -> "Requirement":
        """Parse ``p99_ttft_ms<1000`` as *flag* takes it; raises ConfigError, and UnknownName for an unknown key."""
        match = _REQUIREMENT.fullmatch(text)
        bound = _finite(match[3]) if match else None
        if match is None or bound is None:
            raise ConfigError(flag, f"expected KEY<NUMBER, such as 'p99_ttft_ms<1000', or with <=, > or >=, not"
                                           f" {text!r}")
        if match[1] not in NUMBERS:
            raise UnknownName("number of summary.json", match[1], NUMBERS)
        return cls(match[1], match[2], bound)

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{self.bound:g}"

    def missed(self, summary: Mapping[str, Any]) -> str:
        """Why *summary* misses it; "" where it does not."""
        value = value_of(summary, self.key)
        if value is None:
            return f"the run has no {self.key}, which must be {self.sign} {self.bound:g}"
        if _HOLDS[self.sign](value, self.bound):
            return ""
        return f"{self.key} is {number(value)}, not {self.sign} {self.bound:g}"


def value_of(summary: Mapping[str, Any], key: str) -> float | None:
    """A number of a run by its *key*, one of `NUMBERS`; None where the run does not tell it."""
    value: float | None = summary[key] if key in summary else derived(summary).get(key)
    return value


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: What a request costs, and how long a user waits for it in all: either TTFT or TPOT can be had at the other's expense.
DEFAULT = ("joules_per_output_token", "median_e2el_ms")
#: The share of requests that a point may reject by default.  So few hardly change an objective; with more rejections, a
#: point would look cheap.
TOLERATED = 0.01
#: Why a point does not count that could not keep up with its load.
SATURATED = "saturated: its queue kept growing, so its latencies depend on how long the run was"


@frozen
class ParetoPoint:
    """An outcome among others, with the `values` of its objectives, or none where one of them is missing.

    Points are numbered from 1, those on the front first.  `problem` says why a point does not count; it may have values
    all the same.  `beaten_by` is the first point of the front that dominates it; None for points of the front, and for
    points that do not count.
    """

    number: int
    outcome: Outcome
    values: tuple[float, ...] = ()
    beaten_by: int | None = None
    problem: str = ""

    @property
    def on_front(self) -> bool:
        """Whether it counts and no other point dominates it."""
        return not self.problem and self.beaten_by is None


def front(costs: Floats) -> Bools:
    """Which rows of *costs* (points x objectives, less is better) no other row dominates.

    A row dominates another if it is nowhere larger and somewhere smaller; equal rows do not dominate each other.
    """
    return ~np.array([_dominates(costs, row).any() for row in costs], dtype=bool)


@frozen
class Goals:
    """The objectives by which outcomes are compared, and the bounds that an outcome has to meet to count.

    A point counts if it has all `objectives`, meets what is `required`, kept up with its load, and rejected no more
    than the `tolerated` share of its requests.
    """

    objectives: tuple[Objective, ...]
    required: tuple[Requirement, ...] = ()
    tolerated: float = TOLERATED

    @classmethod
    def parse(cls, objectives: Sequence[str] = (), required: Sequence[str] = (), tolerated: float = TOLERATED
              ) -> "Goals":
        """The goals of texts as of ``--objective``, by default `DEFAULT`, and ``--require``.

        Raises UnknownName and ConfigError for what there cannot be, and for an objective that comes twice.
        """
        named = tuple(Objective.parse(text) for text in objectives or DEFAULT)
        check_once([objective.key for objective in named], "--objective")
        return cls(named, tuple(map(Requirement.parse, required)), tolerated)

    @property
    def keys(self) -> list[str]:
        """The numbers that decide: of the objectives, then of what is required."""
        return list(dict.fromkeys([*(objective.key for objective in self.objectives),
                                   *(bound.key for bound in self.required)]))

    def rank(self, outcomes: Sequence[Outcome]) -> list[ParetoPoint]:
        """The *outcomes* as points: the front by the first objective, then what it beats, then what does not count."""
        problems = [self._problem(outcome) for outcome in outcomes]
        counting = [outcome for outcome, problem in zip(outcomes, problems, strict=True) if not problem]
        others = [ParetoPoint(0, outcome, self._values(outcome), problem=problem)
                  for outcome, problem in zip(outcomes, problems, strict=True) if problem]
        others.sort(key=lambda point: not point.values)
        return [evolve(point, number=number) for number, point in enumerate([*self._ranked(counting), *others], 1)]

    def _ranked(self, outcomes: Sequence[Outcome]) -> list[ParetoPoint]:
        """The points of the front, which get the first numbers, then all others."""
        values = [self._values(outcome) for outcome in outcomes]
        costs = np.array([[objective.cost(value) for objective, value in zip(self.objectives, row, strict=True)]
                          for row in values])
        costs = costs.reshape(len(values), len(self.objectives))  # also where there are none
        best = front(costs)
        order = sorted(range(len(outcomes)), key=lambda row: (not best[row], *costs[row]))
        leading = costs[[row for row in order if best[row]]]
        beaten = [None if best[row] else int(np.argmax(_dominates(leading, costs[row]))) + 1 for row in order]
        return [ParetoPoint(0, outcomes[row], values[row], by) for row, by in zip(order, beaten, strict=True)]

    def _problem(self, outcome: Outcome) -> str:
        """Why a point does not count; "" where it does."""
        if outcome.problem or outcome.summary is None:
            return outcome.problem
        if outcome.unserved_share > self.tolerated:
            return outcome.unserved
        if outcome.summary.get("saturated"):
            return SATURATED
        missing = [f"nothing in the run tells {objective.key}" for objective in self.objectives
                   if value_of(outcome.summary, objective.key) is None]
        missed = [reason for requirement in self.required if (reason := requirement.missed(outcome.summary))]
        return "; ".join(missing[:1] or missed)

    def _values(self, outcome: Outcome) -> tuple[float, ...]:
        """The objectives of *outcome*, or nothing where one is unknown."""
        if not outcome.summary:
            return ()
        values = [value_of(outcome.summary, objective.key) for objective in self.objectives]
        return () if None in values else tuple(float(value) for value in values if value is not None)


def check_once(keys: Sequence[str], flag: str) -> None:
    """Raise ConfigError for an objective that *flag* names twice."""
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ConfigError(flag, f"{twice[0]} comes twice; name each objective once")


def refusal(points: Sequence[ParetoPoint]) -> str:
    """Why no point is on the front; "" where one is."""
    if any(point.on_front for point in points):
        return ""
    return f"none of {len(points)} points counts: {first_of([point.problem for point in points])}{_advice(points)}"


def first_of(reasons: Sequence[str]) -> str:
    """The first of *reasons*, and how many others there are."""
    others = len(set(reasons)) - 1
    return reasons[0] + (f" (and {others} other {'reason' if others == 1 else 'reasons'})" if others else "")


def _advice(points: Sequence[ParetoPoint]) -> str:
    """Advice by which points would count that reject too many requests, or that cannot keep up."""
    if all(point.problem == SATURATED for point in points):
        return "; lower the rate of requests, or try more GPUs"
    shares = [point.outcome.unserved_share for point in points if point.problem == point.outcome.unserved]
    return f"; --max-rejected {ceil(1000 * min(shares)) / 1000:g} would let the best of them count" if shares else ""


def _dominates(costs: Floats, row: Floats) -> Bools:
    """Which of *costs* dominate *row*."""
    return np.asarray((costs <= row).all(axis=1) & (costs < row).any(axis=1))
