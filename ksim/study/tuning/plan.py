"""The plan of a tuning, the rule by which it stops a run, and the lesson that its sampler learns from a trial."""

import re
from collections.abc import Mapping, Sequence
from math import floor, log
from pathlib import Path
from typing import Any, ClassVar, Literal

from attrs import define, field, frozen

from ksim.foundation.errors import ConfigError
from ksim.results.steps import Floats
from ksim.scenario.model_card import WorkloadSize
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import Running
from ksim.study.experiment import check_names
from ksim.study.grid import Settings
from ksim.study.pareto import TOLERATED, Goals, Objective, Requirement, check_once, value_of
from ksim.study.plan import StudyPlan
from ksim.study.rows import RunRow, SweepPoint
from ksim.study.tuning.space import Listed, Space
from ksim.views.wording import number

#: After which shares of its requests a run is looked at.  Each look takes about as long as a hundred steps.
LOOKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
_KEY = re.compile(r"(mean|median|p\d+)_(ttft|tpot|e2el|queue)_ms")


@frozen
class Limit:
    """A requirement on a latency: the `statistic` of a `metric` must not exceed `bound`, in milliseconds.

    With several replications, whose mean counts, it may be exceeded as many times in one of them.
    """

    requirement: Requirement
    metric: str
    statistic: str
    bound: float

    @classmethod
    def of(cls, requirement: Requirement, repeat: int = 1) -> "Limit | None":
        """The limit that *requirement* sets to each of *repeat* replications; None where it sets none."""
        match = _KEY.fullmatch(requirement.key)
        if match is None or requirement.sign not in ("<", "<="):
            return None
        return cls(requirement, match[2], match[1], repeat * requirement.bound)

    def missed(self, values: Floats, requests: int) -> bool:
        """Whether it is missed for sure, if *values* are those of some of at most so many *requests*."""
        if self.statistic == "mean":
            return bool(values.sum() > self.bound * requests)
        share = 0.5 if self.statistic == "median" else int(self.statistic[1:]) / 100
        return bool((values > self.bound).sum() >= requests - floor(share * (requests - 1)))


@define
class CertainMiss:
    """The rule that stops a run as soon as one of the *limits* is missed for sure, whatever its other requests see.

    Latencies of requests that have completed are final, and the number of requests is known: once more than 1 % of them
    all took too long, no later request can bring the p99 back.

    With `stop` false, it notes when it would have stopped the run, and lets it go on.  `at_stop` are some *keys* of the
    summary of what had happened by that moment, and how many `requests` had ended; None where that moment did not come.
    """

    of_ends: ClassVar[bool] = True
    limits: Sequence[Limit]
    keys: Sequence[str]
    stop: bool = True
    at_stop: Mapping[str, float | None] | None = field(default=None, init=False)
    _size: int = field(default=0, init=False)

    def looks(self, scenario: Scenario) -> Sequence[float]:
        if not self.limits:
            return ()
        self._size = _size(scenario)
        return [share * self._size for share in LOOKS]

    def reason(self, running: Running, requests: int) -> str:
        if self.at_stop is not None:
            return ""
        result = running.result()
        done = result.history.requests
        missed = next((limit for limit in self.limits
                       if limit.missed(1e3 * done.latencies(limit.metric, done.completed), self._size)), None)
        if missed is None:
            return ""
        self.at_stop = {"requests": requests, **{key: value_of(result.summary, key) for key in self.keys}}
        bound = missed.requirement
        return (f"stopped after {requests:,} of {self._size:,} requests: {bound.key} is certain to miss {bound.sign}"
                f" {number(bound.bound)}") if self.stop else ""


def _size(scenario: Scenario) -> int:
    """The number of requests in the workload of *scenario*."""
    synthetic = scenario.workload.synthetic
    count = synthetic.count if synthetic is not None else None
    return count or WorkloadSize.of(scenario).requests


Direction = Literal["minimize", "maximize"]

#: Trials that are asked for together, before the sampler learns from any of them.
ROUND = 8


def goals(minimize: Sequence[str] = (), maximize: Sequence[str] = (), subject_to: Sequence[str] = (),
          tolerated: float = TOLERATED) -> Goals:
    """The goals of a tuning, by texts as of its options; raises ConfigError and UnknownName."""
    return Goals((*(Objective.parse(f"min:{key}") for key in minimize),
                  *(Objective.parse(f"max:{key}") for key in maximize)),
                 tuple(Requirement.parse(text, "--subject-to") for text in subject_to), tolerated)


@frozen
class TunePlan(StudyPlan):
    """The settings of `scenario` in a `space` that are best by the `goals` are looked for.

    A `sampler` proposes `round` trials at a time; each is run `repeat` times, and the means count.  With `prune`, a run
    that is certain to miss what is required is stopped.  `search_seed` is that of the sampler.
    """

    kind: ClassVar[str] = "tune"
    space: Space
    goals: Goals
    sampler: str = "tpe"
    search_seed: int = 0
    repeat: int = 1
    round: int = ROUND
    prune: bool = True

    def __attrs_post_init__(self) -> None:
        if not self.goals.objectives:
            raise ConfigError("--minimize", "names nothing to look for; give a number of summary.json, such as"
                                            " usd_per_million_tokens")
        check_once([objective.key for objective in self.goals.objectives], "--minimize")
        if self.repeat > 1 and "seed" in (axis.key for axis in self.space.dimensions):
            raise ConfigError("--space", "seed: --repeat varies the seed already; leave one of both out")

    @property
    def command(self) -> dict[str, Any]:
        """The options that tell this tuning from others, for study.json; it may go on for more trials."""
        return {"objectives": [*map(str, self.goals.objectives)], "require": [*map(str, self.goals.required)],
                "space": {axis.key: list(axis.values) if isinstance(axis, Listed) else str(axis.range)
                          for axis in self.space.dimensions},
                "sampler": self.sampler, "seed": self.search_seed, "repeat": self.repeat, "round": self.round,
                "max_rejected": self.goals.tolerated, "prune": self.prune}

    def check(self, path: Path | None, resume: bool = False, force: bool = False) -> None:
        super().check(path, resume, force)
        check_names(self.scenario, self.corners())

    @property
    def limits(self) -> list[Limit]:
        """The limits whose certain miss stops a run."""
        limits = [Limit.of(requirement, self.repeat) for requirement in self.goals.required]
        return [limit for limit in limits if limit is not None]

    @property
    def keys(self) -> list[str]:
        """The numbers of a run that count."""
        return self.goals.keys

    @property
    def directions(self) -> list[Direction]:
        return ["maximize" if objective.maximise else "minimize" for objective in self.goals.objectives]

    def rows(self, trial: int, settings: Settings) -> list[RunRow]:
        """The runs of trial number *trial*, from 1, which are not run yet."""
        return [RunRow(trial, replication, self.seed(settings, replication), settings)
                for replication in range(self.repeat)]

    def corners(self) -> list[Settings]:
        """Settings in which each value of the space comes, and each end of a range."""
        return [{axis.key: value} for axis in self.space.dimensions
                for value in (axis.values if isinstance(axis, Listed) else [axis.setting(axis.at(0.0))])]


#: The prefix of columns with the numbers of a run at the moment at which it was stopped, or would have been.
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
    """The lesson of the trial *point*.

    If a run was stopped, or would have been, the numbers are those of that moment, so that a sampler learns the same
    with and without an early stop.
    """
    numbers = at_stop(point.rows) or point.outcome.summary
    if numbers is None:
        return Lesson((), {"failed": 1.0, **{str(bound): 0.0 for bound in plan.goals.required}})
    whole = point.outcome.summary or {}
    violations = {
        "failed": 0.0,
        "rejected": point.outcome.unserved_share - plan.goals.tolerated,
        "saturated": _backlog(whole) if whole.get("saturated") else 0.0,
        **{str(bound): violation(bound, value_of(numbers, bound.key)) for bound in plan.goals.required}}
    values = [value_of(numbers, objective.key) for objective in plan.goals.objectives]
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


def at_stop(rows: Sequence[RunRow]) -> dict[str, Any] | None:
    """The numbers of the first run that was stopped, as of that moment, by key; None if none was stopped."""
    for row in rows:
        numbers = {key.removeprefix(AT_STOP): value for key, value in row.numbers.items()
                if key.startswith(AT_STOP) and value is not None}
        if numbers:
            return numbers
    return None


def _backlog(summary: Mapping[str, Any]) -> float:
    """The share of requests that still waited when the last one came."""
    count = sum(float(summary[status]) for status in ("completed", "failed", "unfinished"))
    return max(_LEAST, float(summary["waiting_at_last_arrival"]) / max(1.0, count))
