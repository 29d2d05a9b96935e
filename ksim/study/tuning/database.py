"""The study as Optuna keeps it, in SQLite, for optuna-dashboard and for Optuna's own tools.

This module needs Optuna.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from attrs import frozen
from optuna.trial import FrozenTrial, TrialState

from ksim.study.grid import value_text
from ksim.study.rows import FAILED, STOPPED
from ksim.study.tuning.lessons import AT_STOP
from ksim.study.tuning.plan import TunePlan
from ksim.study.tuning.rounds import Trial
from ksim.study.tuning.search import proposal_of, quiet

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
            study.set_metric_names([objective.key for objective in plan.wanted])
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
        told = max((row.numbers.get(f"{AT_STOP}requests") or 0 for row in point.rows), default=0)
        steps = {int(told): lesson.values[0]} if state is TrialState.PRUNED and len(lesson.values) == 1 else {}
        return _created(lesson.violations, state=state, params=dict(proposal_of(space, point.settings)),
                        values=[*lesson.values] if state is TrialState.COMPLETE else None,
                        distributions=space.distributions(), user_attrs=attributes, intermediate_values=steps)


def _created(violations: Any, **parts: Any) -> FrozenTrial:
    """A trial of these *parts* with its constraints; Optuna before 5 keeps them without names."""
    if hasattr(FrozenTrial, "set_constraint"):
        return optuna.create_trial(constraints=dict(violations), **parts)
    return optuna.create_trial(system_attrs={"constraints": [*violations.values()]}, **parts)
