"""The search itself: points are asked for and told of, in an order that does not depend on who computes them.

This module needs Optuna.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from attrs import define, field
from optuna.trial import TrialState

from ksim.study.grid import Settings
from ksim.study.tuning.lessons import Lesson
from ksim.study.tuning.plan import Direction
from ksim.study.tuning.sampler import Untried, sampler
from ksim.study.tuning.space import Proposal, Space


@define
class Search:
    """A study of Optuna's in memory.

    The sampler is told more than Optuna keeps of a study: points that failed or were stopped are told as completed ones
    that violate a constraint, or the sampler would propose their like again and again.
    """

    space: Space
    sampler: Untried
    study: optuna.Study
    asked: list[optuna.Trial] = field(factory=list, init=False)

    @classmethod
    def of(cls, space: Space, name: str, seed: int, directions: Sequence[Direction]) -> "Search":
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
    """What was proposed for *settings*."""
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
