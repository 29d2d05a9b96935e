"""What proposes points: one of Optuna's samplers, kept from proposing a point twice.

This module needs Optuna.
"""

from collections.abc import Hashable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from ksim.foundation.errors import ConfigError, UnknownName
from ksim.foundation.rng import stream
from ksim.study.tuning.space import Proposal, Space

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
        """What *inner* proposes, as long as it has enough points to learn from."""
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
    """How Optuna before 5 is told that there are constraints; since 5, each trial has its own."""
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
