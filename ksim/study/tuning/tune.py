"""Tune a scenario, in Python.

Carry a tuning out, and keep what was run, in a directory or in memory.

The result of a tuning, which shows itself in a notebook.

A tuning in words: the best trials, what the others missed, and which settings mattered.

The scenarios of the best trials, as files that `ksim run` takes.

Which settings decided the first objective: the share of its variance that each explains.

The figure of a tuning: its trials and the best so far, or the front of several objectives.
"""

import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ksim.foundation.errors import ConfigError, MissingExtra
from ksim.scenario.scenario import Scenario
from ksim.study import directory
from ksim.study.directory import StudyDirectory
from ksim.study.grid import axes_of, short_names, value_text
from ksim.study.pareto import TOLERATED, ParetoPoint, Requirement, first_of, value_of
from ksim.study.rows import FAILED, NOT_RUN, STOPPED, Row, SweepPoint
from ksim.study.sweep import check_names
from ksim.study.tuning.space import KIND, ROUND, Space, Trials, TunePlan, at_stop, objectives, requirements, violation
from ksim.study.workers import PROCESSES, check, workers
from ksim.views.tables import Table, notebook
from ksim.views.wording import number

if TYPE_CHECKING:
    from ksim.views.figures import Picture


def tuning_plot(tuning: Trials) -> "Picture":
    """The first objective of each trial and the best so far; of several objectives, the front."""
    from ksim.views.figures.studies import ParetoMark, Scale, TrialMark, pareto_chart, search_chart

    scales = [Scale(objective.key, objective.maximise) for objective in tuning.wanted]
    if len(scales) > 1:
        marks = [ParetoMark(point.values, point.on_front, _settings(point.outcome.settings))
                 for point in tuning.ranked if not point.problem]
        return pareto_chart(tuning.title, f"{len(marks)} of {len(tuning.points)} trials count", scales, marks)
    numbers = {id(point.outcome): point.number for point in tuning.points}
    trials = [TrialMark(numbers[id(point.outcome)], point.values[0], not point.problem,
                        _settings(point.outcome.settings)) for point in tuning.ranked if point.values]
    without = len(tuning.points) - len(trials)
    note = f"{len(tuning.points)} trials{f', {without} of them without a value' if without else ''}"
    return search_chart(tuning.title, note, scales[0].label, sorted(trials, key=lambda trial: trial.number),
                        scales[0].maximise)


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(map(value_text, settings.values()))


#: Fewer trials tell nothing.
_FEWEST = 10


def importance(tuning: Trials) -> dict[str, float]:
    """The share of each setting, most important first, by a forest that is fitted to the trials (fANOVA).

    Empty without Optuna or scikit-learn, and where fewer than ten trials ran to their end.
    """
    told = [(point, point.value(tuning.wanted[0].key)) for point in tuning.points]
    known = [(point, value) for point, value in told if value is not None]
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


def best_table(tuning: Trials) -> Table:
    """The best trials, or all of the front: settings, objectives, and what is required."""
    counted = [point for point in tuning.ranked if not point.problem]
    keys = list(dict.fromkeys([*(goal.key for goal in tuning.wanted), *(bound.key for bound in tuning.required)]))
    axes = list(counted[0].outcome.settings) if counted else []
    table = Table.of(">#", ">trial", *short_names(axes).values(), *(f">{key}" for key in keys), "")
    for point in counted[:max(_MOST, len(tuning.front))]:
        table.add_row(str(point.number), str(tuning.trial(point).number),
                      *(value_text(value) for value in point.outcome.settings.values()),
                      *(number(value_of(point.outcome.summary or {}, key)) for key in keys), _place(tuning, point),
                      style="bold" if point.on_front else "")
    return table


def remarks(tuning: Trials) -> Iterator[str]:
    """How many trials there were and how they ended, what they missed, and which settings mattered."""
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
        yield (f"of the differences in {tuning.wanted[0].key}, "
               f"{_joined([f'{share:.0%} came from {names[key]}' for key, share in shares.items()])}")


def refusal(tuning: Trials) -> str:
    """Why no trial counts, which comes closest, and what it misses; "" where one counts."""
    if tuning.best is not None:
        return ""
    closest = min(tuning.points, key=lambda point: _away(tuning, point), default=None)
    problems = [point.problem for point in tuning.ranked]
    if closest is None or _away(tuning, closest) == inf:
        return f"none of {len(problems):,} trials counts: {first_of(problems)}"
    numbers = _numbers(closest)
    missed = [(violation(bound, value_of(numbers, bound.key)), bound) for bound in tuning.required]
    binding = [f"{bound.key} is {number(value_of(numbers, bound.key))}, not {bound.sign} {bound.bound:g}"
               for away, bound in sorted(missed, key=lambda pair: -pair[0]) if away > 0]
    problem = next(point.problem for point in tuning.ranked if point.outcome is closest.outcome)
    settings = ", ".join(f"{name} {value_text(closest.settings[key])}"
                         for key, name in short_names(list(closest.settings)).items())
    return (f"none of {len(problems):,} trials counts; trial {closest.number} comes closest ({settings}):"
            f" {'; '.join(binding) or problem}")


def tuning_html(tuning: Trials) -> str:
    """A tuning in a notebook."""
    return notebook(tuning.title, best_table(tuning), refusal(tuning), *remarks(tuning))


def _away(tuning: Trials, point: SweepPoint) -> float:
    """How far a trial is from meeting what is required; infinitely far if it failed."""
    numbers = _numbers(point)
    if not numbers:
        return inf
    return sum(max(0.0, violation(bound, value_of(numbers, bound.key))) for bound in tuning.required)


def _numbers(point: SweepPoint) -> Mapping[str, Any]:
    """What is known of a trial: its numbers, or those of the moment when it was stopped."""
    return point.outcome.summary or at_stop(point.rows) or {}


def _misses(tuning: Trials) -> Iterator[tuple[Requirement, int]]:
    """How many trials miss each of what is required, most often missed first; those that failed aside."""
    known = [numbers for point in tuning.points if (numbers := _numbers(point))]
    missed = [(bound, sum(bool(bound.missed(numbers)) for numbers in known)) for bound in tuning.required]
    return iter(sorted([pair for pair in missed if pair[1]], key=lambda pair: -pair[1]))


def _place(tuning: Trials, point: ParetoPoint) -> str:
    if point.on_front:
        return "best" if len(tuning.wanted) == 1 else "on the front"
    return "" if len(tuning.wanted) == 1 else f"beaten by {point.beaten_by}"


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


@define(eq=False, slots=False)
class Tuning(Trials):
    """The trials of a tuning, and how they look."""

    def plot(self) -> "Picture":
        """The first objective of each trial and the best so far; of several objectives, the front."""

        return tuning_plot(self)

    def _repr_html_(self) -> str:
        return tuning_html(self)


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
    if len(tuning.wanted) > 1:
        (folder / FRONT).mkdir()
        for point in tuning.front:
            (folder / FRONT / f"{point.number}.toml").write_text(point.outcome.scenario, encoding="utf-8")


@define
class Tuner:
    """Looks for the best settings after `plan`; `study` is where runs are kept, if they are, `rows` are those so far.
    """

    plan: TunePlan
    title: str
    study: StudyDirectory | None = None
    rows: dict[tuple[int, int], Row] = field(factory=dict, init=False)
    _due: list[Row] = field(factory=list, init=False)

    @classmethod
    @contextmanager
    def of(cls, plan: TunePlan, title: str, output: Path | None, resume: bool = False, force: bool = False
           ) -> Iterator["Tuner"]:
        """One that keeps runs at *output*, in a new study there or, to *resume*, in the one that is there."""
        if output is None:
            yield cls(plan, title)
            return
        text = plan.scenario.to_toml()
        with (StudyDirectory.open(output, KIND, plan.command, text) if resume else
              StudyDirectory.create(output, KIND, title, plan.command, text, force)) as study:
            tuner = cls(plan, title, study)
            tuner.rows |= study.rows
            yield tuner

    @property
    def tuning(self) -> Tuning:
        """What came out so far."""
        if self.study is not None:
            return Tuning.read(self.study.path)
        plan = self.plan
        return Tuning(self.title, [self.rows[key] for key in sorted(self.rows)], plan.wanted, plan.required,
                      plan.tolerated, plan.space)

    def search(self, trials: int, on_end: Callable[[], None] = lambda: None, jobs: int | None = None,
               on: str = PROCESSES, address: str | None = None) -> None:
        """Run so many *trials*, but for what was run before; tables and files are written whatever ends this.

        `on_end` is called for each run that ends.
        """
        from ksim.study.tuning.search import Database, Rounds

        def keep(row: Row) -> None:
            self.rows[row.key] = row
            if self.study is not None:
                self.study.add(row)
            on_end()

        most = min(trials, self.plan.round) * self.plan.repeat
        try:
            with (workers(jobs, on, address, most=most) as pool,
                  Database.at(self.study.path, self.plan) if self.study else nullcontext() as database):
                for told in Rounds(self.plan, pool, dict(self.rows), keep, self._ask).run(trials):
                    if database is not None:
                        database.add(told)
        finally:
            self._finish()

    def _ask(self, rows: Sequence[Row]) -> None:
        self._due = list(rows)

    def _finish(self) -> None:
        """Write the table of all runs, and the best."""
        if self.study is not None:
            self.study.finish([row for row in self._due if row.key not in self.rows])
            write_best(self.tuning)


def check_tuning(plan: TunePlan, trials: int, output: Path | None = None, resume: bool = False, force: bool = False,
                 on: str = PROCESSES, address: str | None = None) -> None:
    """Raise KsimError for a tuning that there cannot be, before anything is run or written."""
    check(on, address)
    if find_spec("optuna") is None:
        raise MissingExtra("tune", "ksim tune")
    for flag, value in (("--trials", trials), ("--round", plan.round), ("--repeat", plan.repeat)):
        if value < 1:
            raise ConfigError(flag, f"expected at least 1, not {value}")
    if resume and output is None:
        raise ConfigError("--resume", "goes on with a study that is kept; name its directory with -o")
    with warnings.catch_warnings():  # Optuna's progress bars want widgets in a notebook; nobody sees those bars
        warnings.filterwarnings("ignore", "IProgress not found")
        from ksim.study.tuning.search import Search
    Search.of(plan.space, plan.sampler, plan.seed, plan.directions)
    if resume and output is not None:
        StudyDirectory.open(output, KIND, plan.command, plan.scenario.to_toml()).close()
    elif output is not None:
        directory.check(output, force)
    check_names(plan.scenario, plan.corners())


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
    plan = TunePlan(scenario, Space.of(axes_of(space)), objectives(_texts(minimize), _texts(maximize)),
                    requirements(_texts(subject_to)), sampler=sampler, seed=seed, repeat=repeat, round=round_size,
                    tolerated=max_rejected, prune=prune)
    path = None if output is None else Path(output)
    check_tuning(plan, trials, path, resume, force, on, address)
    with Tuner.of(plan, f"Tuning of {Path(scenario.model).name}", path, resume, force) as tuner:
        tuner.search(trials, jobs=jobs, on=on, address=address)
        return tuner.tuning


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given
