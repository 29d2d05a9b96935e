"""The Pareto front: the outcomes that no other beats in one objective without losing in another."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ksim.flow.log import Log
from ksim.foundation.errors import ConfigError, KsimError, UnknownName
from ksim.results.history import History
from ksim.results.metrics import summarise
from ksim.studies.grid import Outcome

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: What a user waits for, queue and all, and what it costs: TTFT or TPOT alone can be had at the other's expense.
DEFAULT = ("joules_per_output_token", "median_e2el_ms")


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
    """An outcome among others: `values` are its objectives, none where it cannot be judged for its `problem`.

    Points are numbered from 1, those on the front first; `beaten_by` is the first of these that is better, and None for
    a point of the front.
    """

    number: int
    outcome: Outcome
    values: tuple[float, ...] = ()
    beaten_by: int | None = None
    problem: str = ""

    @property
    def on_front(self) -> bool:
        """Whether it has been judged and nothing beats it."""
        return bool(self.values) and self.beaten_by is None


def measures() -> list[str]:
    """The keys of summary.json that are numbers and say how a run went."""
    return [key for key, value in summarise(History(Log())).items() if not isinstance(value, bool)]


def objectives(texts: Sequence[str]) -> list[Objective]:
    """The objectives that *texts* name, or the default ones; raises UnknownName, and ConfigError for fewer than two."""
    named = [Objective.parse(text) for text in texts or DEFAULT]
    if len({objective.key for objective in named}) < max(2, len(named)):
        raise ConfigError("--objective", f"a front is between two objectives or more, each named once, not"
                                         f" {', '.join(map(str, named))}")
    return named


def front(costs: Floats) -> Bools:
    """Which rows of *costs* (points x objectives, less is better) no other row dominates; equal rows stay together.

    A row dominates another if it is nowhere larger and somewhere smaller.
    """
    return ~np.array([_dominates(costs, row).any() for row in costs], dtype=bool)


def judge(found: Sequence[Outcome], wanted: Sequence[Objective]) -> list[Point]:
    """The points in order: the front by the first objective, then those it beats, then those that cannot be judged.

    Raises KsimError where none can be.
    """
    problems = [each.problem or _unknown(each, wanted) for each in found]
    judged = [each for each, problem in zip(found, problems, strict=True) if not problem]
    if not judged:
        others = len(set(problems)) - 1
        more = f" (and {others} other {'reason' if others == 1 else 'reasons'})" if others else ""
        raise KsimError(f"none of {len(found)} points can be judged: {problems[0]}{more}")
    rest = [Point(0, each, problem=problem) for each, problem in zip(found, problems, strict=True) if problem]
    return [evolve(point, number=number) for number, point in enumerate([*_ranked(judged, wanted), *rest], 1)]


def _ranked(judged: Sequence[Outcome], wanted: Sequence[Objective]) -> list[Point]:
    """Points of the front, which are to have the numbers from 1, and then all others."""
    values = [tuple(float(_summary(each)[objective.key]) for objective in wanted) for each in judged]
    costs = np.array([[objective.cost(value) for objective, value in zip(wanted, row, strict=True)] for row in values])
    best = front(costs)
    order = sorted(range(len(judged)), key=lambda row: (not best[row], *costs[row]))
    leading = costs[[row for row in order if best[row]]]
    beaten = [None if best[row] else int(np.argmax(_dominates(leading, costs[row]))) + 1 for row in order]
    return [Point(0, judged[row], values[row], by) for row, by in zip(order, beaten, strict=True)]


def _dominates(costs: Floats, row: Floats) -> Bools:
    """Which of *costs* dominate *row*."""
    return np.asarray((costs <= row).all(axis=1) & (costs < row).any(axis=1))


def _unknown(each: Outcome, wanted: Sequence[Objective]) -> str:
    """Which objective the run has no number for; "" where it has all."""
    missing = [objective.key for objective in wanted if _summary(each)[objective.key] is None]
    return f"nothing in the run tells {missing[0]}" if missing else ""


def _summary(each: Outcome) -> Mapping[str, Any]:
    assert each.summary is not None, "an outcome without a problem has its numbers"
    return each.summary
