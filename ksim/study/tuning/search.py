"""The search of a tuning, by one of Optuna's samplers; this module needs Optuna.

Trials are asked for in rounds, computed side by side, and told to the sampler in order, so the number of workers
changes nothing.  No point is proposed twice.  Optuna's own tools can read the search, as `Database` keeps it in SQLite.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from attrs import define, evolve, field, frozen
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from ksim.foundation.errors import ConfigError, UnknownName
from ksim.foundation.rng import stream
from ksim.scenario.files import native
from ksim.study.experiment import outcome
from ksim.study.grid import Settings, value_text
from ksim.study.rows import FAILED, STOPPED, RunRow, SweepPoint, points_of
from ksim.study.tuning.plan import AT_STOP, CertainMiss, Direction, Lesson, TunePlan, lesson_of
from ksim.study.tuning.space import Proposal, Space
from ksim.study.workers import RunWorkers

#: The samplers by their names on the command line.
NAMES = ("tpe", "gp", "nsga2", "random")
#: So many points are spread over the space before a sampler learns from them.
STARTUP = 16
#: A generation of NSGA-II.
_POPULATION = 16
#: How often a sampler is asked again for a point that it has proposed before, until the nearest new one is taken.
_RETRIES = 4
#: Every so many proposals, a neighbour of one of the best points is tried.
_LOCAL = 3
#: Among so many points, the nearest new one is looked for one by one.
_FEW = 100_000


class Untried(BaseSampler):
    """Proposes points of *space* as *inner* does, each of them once; the first ones are spread over the space."""

    def __init__(self, inner: BaseSampler, space: Space, seed: int) -> None:
        self._inner, self._space = inner, space
        self._rng, self._local = stream(seed, "tune"), not isinstance(inner, RandomSampler)
        self._first = _spread(space, self._rng)
        self._tried: set[Hashable] = set()

    @property
    def exhausted(self) -> bool:
        """Whether every point of the space was proposed."""
        return self._space.size is not None and len(self._tried) >= self._space.size

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._space.distributions()

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
                        ) -> dict[str, Any]:
        """Propose a point; `exhausted` must be false."""
        proposal: Proposal = {}
        if not self._first and self._local and trial.number % _LOCAL == 0 and (best := _best(study)):
            proposal = self._untried_near(best[int(self._rng.integers(len(best)))])
        for _ in range(0 if proposal else 1 + _RETRIES):
            proposal = self._proposed(study, trial, search_space)
            if _key(proposal) not in self._tried:
                break
        if _key(proposal) in self._tried:
            proposal = self._untried_near(proposal)
        self._tried.add(_key(proposal))
        return dict(proposal)

    def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str,
                           param_distribution: BaseDistribution) -> Any:
        raise AssertionError(f"{param_name} is not part of the space")

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._inner.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._inner.after_trial(study, trial, state, values)

    def _proposed(self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]) -> Proposal:
        """A proposal of *inner*, or one of the first points, as long as it has too few to learn from."""
        if self._first:
            return self._first.pop()
        free = {key: each for key, each in search_space.items() if not each.single()}
        learned = self._inner.sample_relative(study, trial, free)
        drawn = self._space.at(self._rng.random(len(self._space.dimensions)).tolist())
        return {**drawn, **learned} if learned else drawn

    def _untried_near(self, proposal: Proposal) -> Proposal:
        """A point that was not proposed before, as few steps away from *proposal* as possible."""
        reached, ring = {_key(proposal)}, [proposal]
        while ring:
            nearby = {_key(other): other for point in ring for other in self._space.neighbours(point)}
            ring = [other for key, other in nearby.items() if key not in reached]
            if left := [other for other in ring if _key(other) not in self._tried]:
                return left[int(self._rng.integers(len(left)))]
            reached |= nearby.keys()
        return next(other for other in self._space.proposals() if _key(other) not in self._tried)


def sampler(name: str, space: Space, seed: int) -> Untried:
    """The sampler called *name*; raises UnknownName, and ConfigError where a library is missing that it needs."""
    if name not in NAMES:
        raise UnknownName("sampler", name, NAMES)
    own = int(stream(seed, f"tune {name}").integers(1 << 31))
    return Untried(_inner(name, own), space, seed)


def _inner(name: str, seed: int) -> BaseSampler:
    from optuna import samplers

    more = _constraints()
    if name == "gp":
        if missing := [library for library in ("torch", "scipy") if find_spec(library) is None]:
            raise ConfigError("--sampler", f"gp needs {' and '.join(missing)}: pip install {' '.join(missing)}")
        return samplers.GPSampler(seed=seed, n_startup_trials=0, deterministic_objective=True, **more)
    if name == "nsga2":
        return samplers.NSGAIISampler(seed=seed, population_size=_POPULATION, **more)
    if name == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(seed=seed, n_startup_trials=1, multivariate=True, constant_liar=True, **more)


def _constraints() -> dict[str, Any]:
    """The argument by which Optuna before 5 learns of constraints; since 5, each trial has its own."""
    if hasattr(FrozenTrial, "set_constraint"):
        return {}
    return {"constraints_func": lambda trial: trial.user_attrs["violations"]}


def _spread(space: Space, rng: Any) -> list[Proposal]:
    """Points that are spread evenly along each dimension: a Latin hypercube."""
    columns = [(rng.permutation(STARTUP) + rng.random(STARTUP)) / STARTUP for _ in space.dimensions]
    return [space.at(shares) for shares in np.transpose(columns).tolist()]


def _best(study: Study) -> list[Proposal]:
    """The best points so far that violate nothing: one, or the front of several objectives."""
    held = [trial for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if max(trial.user_attrs["violations"], default=0.0) <= 0]
    if len(study.directions) == 1 and held:
        best = min if study.direction == StudyDirection.MINIMIZE else max
        return [best(held, key=lambda trial: trial.values[0]).params]
    numbers = {trial.number for trial in held}
    return [trial.params for trial in study.best_trials if trial.number in numbers] if held else []


def _key(proposal: Proposal) -> Hashable:
    return tuple(sorted(proposal.items()))


@define
class OptunaSearch:
    """A study of Optuna's in memory.

    The sampler is told more than Optuna keeps of a study: points that failed or were stopped are told as completed ones
    that violate a constraint, or the sampler would propose their like again and again.
    """

    space: Space
    sampler: Untried
    study: optuna.Study
    asked: list[optuna.Trial] = field(factory=list, init=False)

    @classmethod
    def of(cls, space: Space, name: str, seed: int, directions: Sequence[Direction]) -> "OptunaSearch":
        """A search with the sampler called *name*; raises UnknownName and ConfigError."""
        with quiet():
            proposing = sampler(name, space, seed)
            return cls(space, proposing, optuna.create_study(sampler=proposing, directions=list(directions)))

    def ask(self, count: int) -> list[Settings]:
        """The settings of the next *count* trials, fewer where no point is left."""
        first = len(self.asked)
        with quiet():
            for _ in range(count):
                if self.sampler.exhausted:
                    break
                self.asked.append(self.study.ask(self.space.distributions()))
        return [self.space.settings(trial.params) for trial in self.asked[first:]]

    def tell(self, number: int, lesson: Lesson) -> None:
        """Tell the sampler of trial *number*, counted from 0."""
        trial = self.asked[number]
        with quiet():
            for name, violation in lesson.violations.items():
                if hasattr(trial, "set_constraint"):
                    trial.set_constraint(name, violation)
            trial.set_user_attr("violations", [*lesson.violations.values()])
            if lesson.values:
                self.study.tell(trial, list(lesson.values))
            else:
                self.study.tell(trial, state=TrialState.PRUNED)


def proposal_of(space: Space, settings: Settings) -> Proposal:
    """The proposal that led to *settings*."""
    return {axis.key: axis.proposed(settings[axis.key]) for axis in space.dimensions}


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from logging every trial, and from warning of what is experimental in it."""
    level: Any = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)


@frozen
class Trial:
    """A trial that has ended: its `point`, with all replications, and what the sampler was told of it."""

    point: SweepPoint
    lesson: Lesson


def play(plan: TunePlan, row: RunRow) -> RunRow:
    """Run *row* of *plan*; with `prune`, not to its end where it is certain to miss what is required.

    The row has what was known at that moment, or would have been, so that a sampler learns the same either way.
    """
    rule = CertainMiss(plan.limits, plan.keys, plan.prune)
    ended = row.ended(outcome(plan.scenario, row.changes, rule))
    if rule.at_stop is None:
        return ended
    known = {f"{AT_STOP}{key}": value for key, value in rule.at_stop.items()}
    return evolve(ended, status=STOPPED if plan.prune else ended.status, numbers={**ended.numbers, **known})


@frozen
class Rounds:
    """The rounds of a tuning after `plan`.

    Runs that are `known` are not computed again.  `keep` is told of each other run as it ends, `asked` of the runs of a
    round before they are computed.
    """

    plan: TunePlan
    pool: RunWorkers
    known: Mapping[tuple[int, int], RunRow]
    keep: Callable[[RunRow], None]
    asked: Callable[[Sequence[RunRow]], None]

    def run(self, trials: int) -> Iterator[list[Trial]]:
        """Yield the trials of each round, until there were so many *trials*, or no point is left."""
        plan = self.plan
        search = OptunaSearch.of(plan.space, plan.sampler, plan.search_seed, plan.directions)
        done = 0
        while done < trials:
            settings = search.ask(min(plan.round, trials - done))
            if not settings:
                return
            ended = self._round([plan.rows(done + number, chosen) for number, chosen in enumerate(settings, 1)])
            for number, trial in enumerate(ended, done):
                search.tell(number, trial.lesson)
            done += len(ended)
            yield ended

    def _round(self, rows: Sequence[Sequence[RunRow]]) -> list[Trial]:
        """The trials with these *rows*, computed where they are not known."""
        flat = [row for replications in rows for row in replications]
        ended = {row.key: known for row in flat if (known := self._known(row)) is not None}
        left = [row for row in flat if row.key not in ended]
        self.asked(left)
        for _, row in self.pool.run(partial(play, self.plan), left):
            self.keep(row)
            ended[row.key] = row
        return [Trial(point, lesson_of(point, self.plan)) for point in points_of([*ended.values()])]

    def _known(self, row: RunRow) -> RunRow | None:
        """The run of *row* if it was computed before."""
        known = self.known.get(row.key)
        return known if known is not None and known.settings == native(row.settings, "settings") else None


FILE, NAME = "study.db", "ksim tune"


@frozen
class Database:
    """Optuna's study of a tuning after `plan`: trials in the order in which they were told."""

    study: optuna.Study
    plan: TunePlan

    @classmethod
    @contextmanager
    def at(cls, folder: Path, plan: TunePlan) -> Iterator["Database"]:
        """The study in *folder*, made there if there is none."""
        with quiet():
            storage = optuna.storages.RDBStorage(f"sqlite:///{folder / FILE}")
            study = optuna.create_study(storage=storage, study_name=NAME, directions=plan.directions,
                                        load_if_exists=True)
            study.set_metric_names([objective.key for objective in plan.goals.objectives])
            for key, value in plan.command.items():
                study.set_user_attr(key, value)
        try:
            yield cls(study, plan)
        finally:
            storage.remove_session()
            storage.engine.dispose()

    def add(self, trials: Sequence[Trial]) -> None:
        """Add those of *trials* that are not there yet."""
        with quiet():
            there = len(self.study.get_trials(deepcopy=False))
            for trial in trials:
                if trial.point.number > there:
                    self.study.add_trial(self._frozen(trial))

    def _frozen(self, trial: Trial) -> FrozenTrial:
        lesson, point, space = trial.lesson, trial.point, self.plan.space
        statuses = {row.status for row in point.rows}
        state = (TrialState.FAIL if FAILED in statuses or not lesson.values else
                 TrialState.PRUNED if STOPPED in statuses else TrialState.COMPLETE)
        settings = {key: value_text(value) for key, value in point.settings.items()}
        attributes: dict[str, Any] = {"settings": settings, "scenario": point.outcome.scenario, "problem":
                                      point.outcome.problem, "violations": [*lesson.violations.values()]}
        requests = max((row.numbers.get(f"{AT_STOP}requests") or 0 for row in point.rows), default=0)
        steps = {int(requests): lesson.values[0]} if state is TrialState.PRUNED and len(lesson.values) == 1 else {}
        return _created(lesson.violations, state=state, params=dict(proposal_of(space, point.settings)),
                        values=[*lesson.values] if state is TrialState.COMPLETE else None,
                        distributions=space.distributions(), user_attrs=attributes, intermediate_values=steps)


def _created(violations: Any, **parts: Any) -> FrozenTrial:
    """A trial of these *parts* with its constraints; Optuna before 5 keeps them without names."""
    if hasattr(FrozenTrial, "set_constraint"):
        return optuna.create_trial(constraints=dict(violations), **parts)
    return optuna.create_trial(system_attrs={"constraints": [*violations.values()]}, **parts)
