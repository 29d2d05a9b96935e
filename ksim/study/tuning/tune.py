"""`ksim.tune`: the best settings of a scenario, found by running few of all.

A `Tuner` carries out a `TunePlan`; a `Tuning` is what came out: the trials, the best of them, the front, and how the
others ended.
"""

import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cached_property
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from attrs import define, field

from ksim.foundation.errors import ConfigError, MissingExtra
from ksim.scenario.scenario import Scenario
from ksim.study.directory import StudyDirectory, StudyRuns
from ksim.study.grid import axes_of, short_names, value_text
from ksim.study.pareto import TOLERATED, Goals, Objective, ParetoPoint, Requirement, first_of, value_of
from ksim.study.plan import OnEnd, silent
from ksim.study.rows import FAILED, NOT_RUN, OK, STOPPED, RunRow, SweepPoint
from ksim.study.sweep import StudyResult
from ksim.study.tuning.plan import ROUND, TunePlan, at_stop, goals, violation
from ksim.study.tuning.space import Space
from ksim.study.workers import HERE, PROCESSES, Where
from ksim.views.tables import Table, notebook
from ksim.views.wording import number

if TYPE_CHECKING:
    import pandas

    from ksim.views.figures import Picture

__all__ = ["Space", "TunePlan", "Tuner", "Tuning", "best_table", "check_tuning", "goals", "refusal", "remarks", "tune"]


@define(eq=False, slots=False)
class Tuning(StudyResult):
    """The trials of a tuning, as far as they were run; points are numbered by trial.

    `goals` are what it looks for, and `space` is where.
    """

    goals: Goals = field(kw_only=True)
    space: Space = field(kw_only=True)

    @classmethod
    def read(cls, directory: Path | str) -> Self:
        """The tuning that is kept at *directory*, finished or not; raises ConfigError and DataError."""
        study = StudyDirectory.read(Path(directory))
        command = study.head.command
        goals = Goals(tuple(map(Objective.parse, command["objectives"])),
                      tuple(map(Requirement.parse, command["require"])), command["max_rejected"])
        return cls(study.head.title, sorted(study.rows, key=lambda row: row.key), study.path, goals=goals,
                   space=Space.of(axes_of(command["space"])))

    @cached_property
    def ranked(self) -> list[ParetoPoint]:
        """All trials, numbered by their place: the best first, or the front; then others; then what does not count."""
        return self.goals.rank([point.outcome for point in self.points])

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
        """The number of trials by their end: ok, failed, stopped or not run."""
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

    def plot(self) -> "Picture":
        """The first objective of each trial and the best so far; of several objectives, the front."""
        from ksim.views.figures.studies import ParetoMark, Scale, TrialMark, pareto_chart, search_chart

        scales = [Scale(objective.key, objective.maximise) for objective in self.goals.objectives]
        if len(scales) > 1:
            marks = [ParetoMark(point.values, point.on_front, _settings(point.outcome.settings))
                     for point in self.ranked if not point.problem]
            return pareto_chart(self.title, f"{len(marks)} of {len(self.points)} trials count", scales, marks)
        numbers = {id(point.outcome): point.number for point in self.points}
        trials = [TrialMark(numbers[id(point.outcome)], point.values[0], not point.problem,
                        _settings(point.outcome.settings)) for point in self.ranked if point.values]
        without = len(self.points) - len(trials)
        note = f"{len(self.points)} trials{f', {without} of them without a value' if without else ''}"
        return search_chart(self.title, note, scales[0].label, sorted(trials, key=lambda trial: trial.number),
                            scales[0].maximise)

    def _repr_html_(self) -> str:
        return notebook(self.title, best_table(self), refusal(self), *remarks(self))


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(map(value_text, settings.values()))


#: Fewer trials tell nothing.
_FEWEST = 10


def importance(tuning: Tuning) -> dict[str, float]:
    """The share of each setting, most important first, by a forest that is fitted to the trials (fANOVA).

    Empty without Optuna or scikit-learn, and where fewer than ten trials ran to their end.
    """
    key = tuning.goals.objectives[0].key
    known = [(point, value) for point in tuning.points if (value := point.value(key)) is not None]
    if len(known) < _FEWEST or find_spec("optuna") is None or find_spec("sklearn") is None:
        return {}
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    from ksim.study.tuning.search import proposal_of, quiet

    distributions = tuning.space.distributions()
    with quiet():
        study = optuna.create_study()
        study.add_trials([optuna.create_trial(params=dict(proposal_of(tuning.space, point.settings)), value=value,
                                              distributions=distributions) for point, value in known])
        shares = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return {key: float(share) for key, share in shares.items()}


#: The most rows of a table.
_MOST = 10


def best_table(tuning: Tuning) -> Table:
    """The best trials, or all of the front: settings, objectives, and what is required."""
    counted = [point for point in tuning.ranked if not point.problem]
    keys = tuning.goals.keys
    axes = list(counted[0].outcome.settings) if counted else []
    table = Table.of(">#", ">trial", *short_names(axes).values(), *(f">{key}" for key in keys), "")
    for point in counted[:max(_MOST, len(tuning.front))]:
        table.add_row(str(point.number), str(tuning.trial(point).number),
                      *(value_text(value) for value in point.outcome.settings.values()),
                      *(number(value_of(point.outcome.summary or {}, key)) for key in keys), _place(tuning, point),
                      style="bold" if point.on_front else "")
    return table


def remarks(tuning: Tuning) -> Iterator[str]:
    """The number of trials and how they ended, the bounds that they missed, and the settings that mattered."""
    counts = tuning.counts
    words = {STOPPED: "stopped early", FAILED: "failed", NOT_RUN: "not run"}
    ended = [f"{counts[status]:,} {word}" for status, word in words.items() if counts.get(status)]
    yield f"{len(tuning.points):,} trials{f', of which {_joined(ended)}' if ended else ''}"
    for requirement, missed in _misses(tuning):
        yield f"{missed:,} trials missed {requirement}"
    problems = [point.outcome.problem for point in tuning.points if any(row.status == FAILED for row in point.rows)]
    if problems:
        yield f"{len(problems):,} trials failed: {first_of(problems)}"
    if shares := importance(tuning):
        names = short_names(list(shares))
        yield (f"of the differences in {tuning.goals.objectives[0].key}, "
               f"{_joined([f'{share:.0%} came from {names[key]}' for key, share in shares.items()])}")


def refusal(tuning: Tuning) -> str:
    """Why no trial counts, which comes closest, and what it misses; "" where one counts."""
    if tuning.best is not None:
        return ""
    closest = min(tuning.points, key=lambda point: _away(tuning, point), default=None)
    problems = [point.problem for point in tuning.ranked]
    if closest is None or _away(tuning, closest) == inf:
        return f"none of {len(problems):,} trials counts: {first_of(problems)}"
    numbers = _numbers(closest)
    missed = [(violation(bound, value_of(numbers, bound.key)), bound) for bound in tuning.goals.required]
    binding = [f"{bound.key} is {number(value_of(numbers, bound.key))}, not {bound.sign} {bound.bound:g}"
               for away, bound in sorted(missed, key=lambda pair: -pair[0]) if away > 0]
    problem = next(point.problem for point in tuning.ranked if point.outcome is closest.outcome)
    settings = ", ".join(f"{name} {value_text(closest.settings[key])}"
                         for key, name in short_names(list(closest.settings)).items())
    return (f"none of {len(problems):,} trials counts; trial {closest.number} comes closest ({settings}):"
            f" {'; '.join(binding) or problem}")


def _away(tuning: Tuning, point: SweepPoint) -> float:
    """The distance of a trial from meeting what is required; infinite if it failed."""
    numbers = _numbers(point)
    if not numbers:
        return inf
    return sum(max(0.0, violation(bound, value_of(numbers, bound.key))) for bound in tuning.goals.required)


def _numbers(point: SweepPoint) -> Mapping[str, Any]:
    """The numbers of a trial, or those of the moment when it was stopped."""
    return point.outcome.summary or at_stop(point.rows) or {}


def _misses(tuning: Tuning) -> Iterator[tuple[Requirement, int]]:
    """The trials that miss each bound, most often missed first; those that failed do not count."""
    known = [numbers for point in tuning.points if (numbers := _numbers(point))]
    missed = [(bound, sum(bool(bound.missed(numbers)) for numbers in known)) for bound in tuning.goals.required]
    return iter(sorted([pair for pair in missed if pair[1]], key=lambda pair: -pair[1]))


def _place(tuning: Tuning, point: ParetoPoint) -> str:
    if point.on_front:
        return "best" if len(tuning.goals.objectives) == 1 else "on the front"
    return "" if len(tuning.goals.objectives) == 1 else f"beaten by {point.beaten_by}"


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


BEST, FRONT = "best.toml", "front"


def write_best(tuning: Tuning) -> None:
    """Write best.toml into the directory of *tuning* and, where there are several objectives, front/N.toml."""
    folder = tuning.directory
    assert folder is not None, "a tuning that is kept has a directory"
    shutil.rmtree(folder / FRONT, ignore_errors=True)
    with suppress(FileNotFoundError):
        (folder / BEST).unlink()
    if tuning.best is not None:
        (folder / BEST).write_text(tuning.best.outcome.scenario, encoding="utf-8")
    if len(tuning.goals.objectives) > 1:
        (folder / FRONT).mkdir()
        for point in tuning.front:
            (folder / FRONT / f"{point.number}.toml").write_text(point.outcome.scenario, encoding="utf-8")


@define
class Tuner:
    """Looks for the best settings after `plan`; `study` has the runs so far."""

    plan: TunePlan
    title: str
    study: StudyRuns
    _due: list[RunRow] = field(factory=list, init=False)

    @property
    def tuning(self) -> Tuning:
        """The result so far."""
        if isinstance(self.study, StudyDirectory):
            return Tuning.read(self.study.path)
        rows = [self.study.rows[key] for key in sorted(self.study.rows)]
        return Tuning(self.title, rows, goals=self.plan.goals, space=self.plan.space)

    def search(self, trials: int, where: Where = HERE, on_end: OnEnd = silent) -> None:
        """Run so many *trials*, but for what was run before; tables and files are written whatever ends this.

        `on_end` is called for each run that ends.
        """
        from ksim.study.tuning.search import Database, Rounds

        def keep(row: RunRow) -> None:
            self.study.add(row)
            on_end()

        most = min(trials, self.plan.round) * self.plan.repeat
        try:
            with (where.workers(most=most) as pool,
                  Database.at(self.study.path, self.plan) if isinstance(self.study, StudyDirectory) else nullcontext()
                  as database):
                for ended in Rounds(self.plan, pool, dict(self.study.rows), keep, self._ask).run(trials):
                    if database is not None:
                        database.add(ended)
        finally:
            self.study.finish(self.study.without(self._due))
            if isinstance(self.study, StudyDirectory):
                write_best(self.tuning)

    def _ask(self, rows: Sequence[RunRow]) -> None:
        self._due = list(rows)


def check_tuning(plan: TunePlan, trials: int, output: Path | None = None, resume: bool = False, force: bool = False
                 ) -> None:
    """Raise KsimError for a tuning that there cannot be, before anything is run or written."""
    if find_spec("optuna") is None:
        raise MissingExtra("tune", "ksim tune")
    for flag, value in (("--trials", trials), ("--round", plan.round), ("--repeat", plan.repeat)):
        if value < 1:
            raise ConfigError(flag, f"expected at least 1, not {value}")
    with warnings.catch_warnings():  # Optuna's progress bars want widgets in a notebook; nobody sees those bars
        warnings.filterwarnings("ignore", "IProgress not found")
        from ksim.study.tuning.search import OptunaSearch
    OptunaSearch.of(plan.space, plan.sampler, plan.search_seed, plan.directions)
    plan.check(output, resume, force)


def tune(scenario: Scenario | str | Path, minimize: str | Sequence[str] = (), maximize: str | Sequence[str] = (), *,
         subject_to: str | Sequence[str] = (), space: Mapping[str, Any] | Iterable[str], trials: int = 100,
         sampler: str = "tpe", seed: int = 0, repeat: int = 1, round_size: int = ROUND,
         max_rejected: float = TOLERATED, prune: bool = True, jobs: int | None = None, on: str = PROCESSES,
         address: str | None = None, output: Path | str | None = None, resume: bool = False, force: bool = False
         ) -> Tuning:
    """Look for the settings of *scenario* with the least of *minimize* and the most of *maximize*.

    Trials count that meet *subject_to*, such as "p99_ttft_ms<1000".  *space* has the values of each key: a list, or a
    range such as "1024:16384:log".  There are at most so many *trials*; docs/sweep.md explains the rest.  With
    *output*, every run is kept there as it ends, and *resume* goes on with what is there.  Raises KsimError.
    """
    scenario = scenario if isinstance(scenario, Scenario) else Scenario.read(scenario)
    minimize, maximize, subject_to = ([texts] if isinstance(texts, str) else texts
                                      for texts in (minimize, maximize, subject_to))
    plan = TunePlan(scenario, Space.of(axes_of(space)), goals(minimize, maximize, subject_to, max_rejected),
                    sampler=sampler, search_seed=seed, repeat=repeat, round=round_size, prune=prune)
    where, path = Where(jobs, on, address), None if output is None else Path(output)
    check_tuning(plan, trials, path, resume, force)
    title = f"Tuning of {Path(scenario.model).name}"
    with plan.kept(path, title, resume, force) as study:
        tuner = Tuner(plan, title, study)
        tuner.search(trials, where)
        return tuner.tuning
