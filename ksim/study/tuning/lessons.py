"""What a sampler learns of a trial: its objectives, and how far it is from counting."""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from attrs import frozen

from ksim.study.means import SweepPoint
from ksim.study.objectives import Requirement, value_of
from ksim.study.rows import Row
from ksim.study.tuning.plan import TunePlan

#: Columns of what was told of a run that was stopped, or that would have been: this, and a number's key.
AT_STOP = "at_stop."
#: The violation of a bound by a value that lies on it, or of something that no number tells.
_LEAST, _UNTOLD = 1e-9, 1.0


@frozen
class Lesson:
    """The objectives of a trial, if there are any, and by how much it violates each constraint.

    Nothing is violated where all `violations` are 0 or less.
    """

    values: tuple[float, ...]
    violations: Mapping[str, float]

    @property
    def violation(self) -> float:
        """By how much all constraints are violated together."""
        return sum(max(0.0, violation) for violation in self.violations.values())


def lesson_of(point: SweepPoint, plan: TunePlan) -> Lesson:
    """What the trial *point* teaches.

    Of a run that was stopped, or would have been, that is what was known at that moment, so that a sampler learns the
    same with and without an early stop.
    """
    numbers = at_stop(point.rows) or point.outcome.summary
    if numbers is None:
        return Lesson((), {"failed": 1.0, **{str(bound): 0.0 for bound in plan.required}})
    whole = point.outcome.summary or {}
    violations = {
        "failed": 0.0,
        "rejected": point.outcome.unserved_share - plan.tolerated,
        "saturated": _backlog(whole) if whole.get("saturated") else 0.0,
        **{str(bound): violation(bound, value_of(numbers, bound.key)) for bound in plan.required}}
    values = [value_of(numbers, objective.key) for objective in plan.wanted]
    if None in values:
        return Lesson((), {**violations, "failed": _UNTOLD})
    return Lesson(tuple(float(value) for value in values if value is not None), violations)


def violation(requirement: Requirement, value: float | None) -> float:
    """By how much *value* misses *requirement*: the logarithm of their ratio; 0 or less where it meets it."""
    if value is None:
        return _UNTOLD
    bound = requirement.bound
    over = log(value / bound) if value > 0 and bound > 0 else value - bound
    away = over if requirement.sign in ("<", "<=") else -over
    return max(away, _LEAST) if requirement.missed({requirement.key: value}) else min(away, 0.0)


def at_stop(rows: Sequence[Row]) -> dict[str, Any] | None:
    """What was known of the first run that was stopped, by the keys of a summary; None where none was."""
    for row in rows:
        told = {key.removeprefix(AT_STOP): value for key, value in row.numbers.items()
                if key.startswith(AT_STOP) and value is not None}
        if told:
            return told
    return None


def _backlog(summary: Mapping[str, Any]) -> float:
    """The share of requests that still waited when the last one came."""
    count = sum(float(summary[status]) for status in ("completed", "failed", "unfinished"))
    return max(_LEAST, float(summary["waiting_at_last_arrival"]) / max(1.0, count))
