"""The space that a tuning searches: for each key of the scenario, the values that it may take.

The trials of a tuning: the best of them, the front, and how the others ended.

What a tuning looks for, in which space, and how.

What a sampler learns of a trial: its objectives, and how far it is from counting.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import product
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from attrs import define, field, frozen

from ksim.foundation.errors import ConfigError, MissingExtra
from ksim.foundation.units import quantity
from ksim.scenario.scenario import Scenario
from ksim.study.directory import StudyDirectory
from ksim.study.grid import Axis, Range, Settings, axes_of, check_keys, parse, replication_seed, value_text
from ksim.study.pareto import TOLERATED, Objective, ParetoPoint, Requirement, rank, value_of
from ksim.study.rows import FAILED, OK, STOPPED, Row, SweepPoint, points_of
from ksim.study.tuning.watch import Limit

if TYPE_CHECKING:
    import pandas


FLAG = "--space"
#: A step to a neighbour in a wide range: the range over so many, or by this factor where logarithms count.
_STRIDES, _FACTOR = 20, 1.25
#: What a sampler proposes: a number, or the text of a choice, for each key.
Proposal = Mapping[str, Any]


class Dimension(Protocol):
    """A key of the scenario and the values that it may take."""

    @property
    def key(self) -> str: ...

    @property
    def size(self) -> int | None:
        """How many values there are; None for real numbers."""
        ...

    def distribution(self) -> Any:
        """Optuna's distribution of what it proposes for this key."""
        ...

    def setting(self, proposed: Any) -> Any:
        """The scenario's value for what Optuna proposed."""
        ...

    def proposed(self, setting: Any) -> Any:
        """What was proposed for a *setting*."""
        ...

    def at(self, share: float) -> Any:
        """The proposal at this *share* of the way, 0 <= share < 1, from the first value to the last."""
        ...

    def neighbours(self, proposed: Any) -> Sequence[Any]:
        """The proposals next to *proposed*; choices without an order are all next to each other."""
        ...

    def proposals(self) -> Sequence[Any]:
        """All that can be proposed; nothing for real numbers."""
        ...


@frozen
class Listed:
    """Values that are listed.  A sampler proposes the place of a value where they are *ordered*, else its text."""

    key: str
    values: tuple[Any, ...]
    ordered: bool

    @property
    def size(self) -> int:
        return len(self.values)

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        return IntDistribution(0, len(self.values) - 1) if self.ordered else CategoricalDistribution(self.proposals())

    def setting(self, proposed: Any) -> Any:
        return self.values[self.proposals().index(proposed)]

    def proposed(self, setting: Any) -> Any:
        return self.proposals()[[*map(value_text, self.values)].index(value_text(setting))]

    def at(self, share: float) -> Any:
        return self.proposals()[int(share * self.size)]

    def neighbours(self, proposed: Any) -> Sequence[Any]:
        return [other for other in self.proposals()
                if (abs(other - proposed) == 1 if self.ordered else other != proposed)]

    def proposals(self) -> Sequence[Any]:
        return range(self.size) if self.ordered else [*map(value_text, self.values)]


@frozen
class Between:
    """Numbers of a range, with its unit where it has one; whole numbers are counted."""

    range: Range

    @property
    def key(self) -> str:
        return self.range.key

    @property
    def size(self) -> int | None:
        return len(self.proposals()) if self.range.whole else None

    def distribution(self) -> Any:
        from optuna.distributions import FloatDistribution, IntDistribution

        low, high, log = self.range.low, self.range.high, self.range.log
        return IntDistribution(int(low), int(high), log) if self.range.whole else FloatDistribution(low, high, log)

    def setting(self, proposed: Any) -> Any:
        return self.range.shown(proposed)

    def proposed(self, setting: Any) -> Any:
        number = setting.removesuffix(self.range.unit) if isinstance(setting, str) else setting
        return int(number) if self.range.whole else float(number)

    def at(self, share: float) -> Any:
        return self.range.number(share)

    def neighbours(self, proposed: Any) -> Sequence[Any]:
        whole, low, high = self.range.whole, self.range.low, self.range.high
        stride = (high - low) / _STRIDES
        others = [proposed / _FACTOR, proposed * _FACTOR] if self.range.log else [proposed - stride, proposed + stride]
        if whole:
            others = [*map(round, others), proposed - 1, proposed + 1]
        return [other for other in dict.fromkeys(others) if low <= other <= high and other != proposed]

    def proposals(self) -> Sequence[Any]:
        return range(int(self.range.low), int(self.range.high) + 1) if self.range.whole else ()


@frozen
class Space:
    """All dimensions together."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "Space":
        """The space of texts such as ``KEY=1,2,4`` or ``KEY=low:high[:log]``; raises ConfigError."""
        return cls.of(parse(text, FLAG) for text in texts)

    @classmethod
    def of(cls, axes: Iterable[Axis | Range]) -> "Space":
        """The space of these *axes*; raises ConfigError where there is none, or a key comes twice."""
        dimensions = tuple(Between(axis) if isinstance(axis, Range) else listed(axis) for axis in axes)
        if not dimensions:
            raise ConfigError(FLAG, "names no key to search; give one such as serve.max_num_seqs=8,16,32")
        check_keys([dimension.key for dimension in dimensions], FLAG)
        return cls(dimensions)

    @property
    def size(self) -> int | None:
        """How many points there are; None where a dimension has real numbers."""
        sizes = [each.size for each in self.dimensions]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def distributions(self) -> dict[str, Any]:
        """Optuna's distributions by key."""
        return {each.key: each.distribution() for each in self.dimensions}

    def settings(self, proposal: Proposal) -> Settings:
        """The scenario's settings for a *proposal*."""
        return {axis.key: axis.setting(proposal[axis.key]) for axis in self.dimensions}

    def at(self, shares: Sequence[float]) -> Proposal:
        """The proposal at these *shares* of the way along each dimension."""
        return {each.key: each.at(share) for each, share in zip(self.dimensions, shares, strict=True)}

    def neighbours(self, proposal: Proposal) -> list[Proposal]:
        """The proposals that differ from *proposal* by one step in one dimension."""
        return [{**proposal, each.key: other} for each in self.dimensions
                for other in each.neighbours(proposal[each.key])]

    def proposals(self) -> Iterator[Proposal]:
        """All proposals of a space whose `size` is known, the last dimension varying fastest."""
        keys = [each.key for each in self.dimensions]
        return (dict(zip(keys, values, strict=True))
                for values in product(*(each.proposals() for each in self.dimensions)))


def listed(axis: Axis) -> Listed:
    """The dimension of the values of *axis*; raises ConfigError where there is none, or one comes twice."""
    texts = [*map(value_text, axis.values)]
    if len(set(texts)) < max(1, len(texts)):
        raise ConfigError(FLAG, f"{axis.key}: expected different values, not {', '.join(texts) or 'none'}")
    amounts = [amount for amount in map(_amount, axis.values) if amount is not None]
    return Listed(axis.key, axis.values,
                  ordered=len(amounts) == len(texts) and amounts in (sorted(amounts), sorted(amounts, reverse=True)))


def _amount(value: Any) -> float | None:
    """How much *value* is, if it is a number or a quantity with a unit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return quantity(value)
    except ValueError:
        return None


@define(eq=False, slots=False)
class Trials:
    """The trials of a tuning, as far as they were run; points are numbered by trial.

    `wanted` are its objectives, `required` what a trial must meet to count, `tolerated` the share of requests that it
    may reject, `space` where they were looked for.  `directory` is where the study is kept, if it is.
    """

    title: str
    rows: list[Row] = field(repr=False)
    wanted: Sequence[Objective]
    required: Sequence[Requirement]
    tolerated: float
    space: Space
    directory: Path | None = None

    @classmethod
    def read(cls, directory: Path | str) -> Self:
        """The tuning that is kept at *directory*, finished or not; raises ConfigError and DataError."""
        study = StudyDirectory.read(Path(directory))
        said = study.head.command
        return cls(study.head.title, sorted(study.rows, key=lambda row: row.key),
                   [*map(Objective.parse, said["objectives"])], [*map(Requirement.parse, said["require"])],
                   said["max_rejected"], Space.of(axes_of(said["space"])), study.path)

    @cached_property
    def points(self) -> list[SweepPoint]:
        """The trials, each with its replications and their means."""
        return points_of(self.rows)

    @cached_property
    def ranked(self) -> list[ParetoPoint]:
        """All trials, numbered by their place: the best first, or the front; then others; then what does not count."""
        return rank([point.outcome for point in self.points], self.wanted, self.required, self.tolerated)

    @property
    def front(self) -> list[ParetoPoint]:
        """The trials that no other beats in all objectives; of a single objective, the best."""
        return [point for point in self.ranked if point.on_front]

    @property
    def best(self) -> ParetoPoint | None:
        """The best trial by the first objective; None where no trial counts."""
        return next(iter(self.front), None)

    def trial(self, point: ParetoPoint) -> SweepPoint:
        """The trial that *point* stands for."""
        return next(trial for trial in self.points if trial.outcome is point.outcome)

    @property
    def counts(self) -> dict[str, int]:
        """How many trials there were, by how they ended: ok, failed, stopped or not run."""
        worst = [next((status for status in (FAILED, STOPPED) if any(row.status == status for row in point.rows)),
                      point.rows[-1].status) for point in self.points]
        return {status: worst.count(status) for status in dict.fromkeys((OK, *worst))}

    def to_pandas(self) -> "pandas.DataFrame":
        """One row per trial: settings, numbers, and whether it is on the front; raises MissingExtra without pandas."""
        if find_spec("pandas") is None:
            raise MissingExtra("pandas", "tuning.to_pandas()")
        import pandas

        leading = {id(point.outcome) for point in self.front}
        problems = {id(point.outcome): point.problem for point in self.ranked}
        return pandas.DataFrame([{**trial.record(), "problem": problems[id(trial.outcome)],
                                  "on_front": id(trial.outcome) in leading} for trial in self.points])


Direction = Literal["minimize", "maximize"]

KIND = "tune"
#: Trials that are asked for together, before any of them is told of.
ROUND = 8


def objectives(minimize: Sequence[str], maximize: Sequence[str]) -> tuple[Objective, ...]:
    """What is looked for; raises UnknownName."""
    return (*(Objective.parse(f"min:{key}") for key in minimize), *(Objective.parse(f"max:{key}") for key in maximize))


def requirements(texts: Sequence[str]) -> tuple[Requirement, ...]:
    """What a trial must meet; raises ConfigError and UnknownName."""
    return tuple(Requirement.parse(text, "--subject-to") for text in texts)


@define(slots=False, frozen=True)
class TunePlan:
    """The best settings of `scenario` in a `space` are looked for: those with the least of what is `wanted`.

    A trial counts that meets what is `required`, keeps up with its load, and rejects at most the `tolerated` share of
    its requests.  A `sampler` proposes `round` trials at a time; each is run `repeat` times, and the means count.  With
    `prune`, a run that is certain to miss a requirement is stopped.
    """

    scenario: Scenario
    space: Space
    wanted: tuple[Objective, ...]
    required: tuple[Requirement, ...] = ()
    sampler: str = "tpe"
    seed: int = 0
    repeat: int = 1
    round: int = ROUND
    tolerated: float = TOLERATED
    prune: bool = True

    def __attrs_post_init__(self) -> None:
        if not self.wanted:
            raise ConfigError("--minimize", "names nothing to look for; give a number of summary.json, such as"
                                            " usd_per_million_tokens")
        if twice := [goal.key for goal in self.wanted if [other.key for other in self.wanted].count(goal.key) > 1]:
            raise ConfigError("--minimize", f"{twice[0]} comes twice; name each objective once")
        if self.repeat > 1 and "seed" in (axis.key for axis in self.space.dimensions):
            raise ConfigError("--space", "seed: --repeat varies the seed already; leave one of both out")

    @property
    def command(self) -> dict[str, Any]:
        """What tells this tuning of its scenario from another, for study.json; it may go on for more trials."""
        return {"objectives": [*map(str, self.wanted)], "require": [*map(str, self.required)],
                "space": {axis.key: list(axis.values) if isinstance(axis, Listed) else str(axis.range)
                          for axis in self.space.dimensions if isinstance(axis, Listed | Between)},
                "sampler": self.sampler, "seed": self.seed, "repeat": self.repeat, "round": self.round,
                "max_rejected": self.tolerated, "prune": self.prune}

    @cached_property
    def limits(self) -> list[Limit]:
        """What a run may be stopped for."""
        limits = [Limit.of(requirement, self.repeat) for requirement in self.required]
        return [limit for limit in limits if limit is not None]

    @property
    def keys(self) -> list[str]:
        """The numbers of a run that count."""
        return list(dict.fromkeys([*(goal.key for goal in self.wanted), *(bound.key for bound in self.required)]))

    @property
    def directions(self) -> list[Direction]:
        return ["maximize" if objective.maximise else "minimize" for objective in self.wanted]

    def rows(self, trial: int, settings: Settings) -> list[Row]:
        """The runs of trial number *trial*, from 1, which are not run yet."""
        seed = settings.get("seed")
        first = seed if isinstance(seed, int) else self.scenario.seed
        return [Row(trial, replication, replication_seed(first, replication), settings)
                for replication in range(self.repeat)]

    def corners(self) -> list[Settings]:
        """Settings in which each value of the space comes, and each end of a range."""
        return [{axis.key: value} for axis in self.space.dimensions
                for value in (axis.values if isinstance(axis, Listed) else [axis.setting(axis.at(0.0))])]


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
