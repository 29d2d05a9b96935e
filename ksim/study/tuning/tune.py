"""Tune a scenario: search its settings for the best, and keep what was run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ksim.foundation.errors import ConfigError, MissingExtra
from ksim.simulation.scenario import Scenario
from ksim.study.axes import axes_of
from ksim.study.directory import StudyDirectory
from ksim.study.objectives import Objective, Requirement
from ksim.study.pareto import TOLERATED
from ksim.study.rows import Row
from ksim.study.running import check_names
from ksim.study.tuning.files import write_best
from ksim.study.tuning.plan import KIND, ROUND, TunePlan
from ksim.study.tuning.space import Space
from ksim.study.tuning.tuning import Tuning
from ksim.study.workers import PROCESSES, check, workers


def tune(scenario: Scenario | str | Path, minimize: str | Sequence[str] = (), maximize: str | Sequence[str] = (), *,
         subject_to: str | Sequence[str] = (), space: Mapping[str, Any] | Iterable[str], trials: int = 100,
         sampler: str = "tpe", seed: int = 0, repeat: int = 1, round: int = ROUND, max_rejected: float = TOLERATED,
         prune: bool = True, jobs: int | None = None, on: str = PROCESSES, address: str | None = None,
         output: Path | str | None = None, resume: bool = False, force: bool = False) -> Tuning:
    """Look for the settings of *scenario* with the least of *minimize* and the most of *maximize*.

    Trials count that meet *subject_to*, such as "p99_ttft_ms<1000".  *space* has the values of each key: a list, or a
    range such as "1024:16384:log".  There are at most so many *trials*; docs/tune.md explains the rest.  With *output*,
    every run is kept there as it ends, and *resume* goes on with what is there.  Raises KsimError.
    """
    scenario = scenario if isinstance(scenario, Scenario) else Scenario.read(scenario)
    plan = TunePlan(scenario, Space.of(axes_of(space)), objectives(_texts(minimize), _texts(maximize)),
                    requirements(_texts(subject_to)), sampler, seed, repeat, round, max_rejected, prune)
    check_plan(plan, trials, on, address)
    title = f"Tuning of {Path(scenario.model).name}"
    if output is None:
        ended: list[Row] = []
        search(plan, trials, ended.append, jobs=jobs, on=on, address=address)
        return Tuning(title, sorted(ended, key=lambda row: row.key), plan.wanted, plan.required, plan.tolerated,
                      plan.space)
    with opened(plan, Path(output), title, resume, force) as study:
        tune_into(study, plan, trials, jobs=jobs, on=on, address=address)
    return Tuning.read(output)


def objectives(minimize: Sequence[str], maximize: Sequence[str]) -> tuple[Objective, ...]:
    """What is looked for; raises UnknownName."""
    return (*map(Objective.parse, minimize), *(Objective.parse(f"max:{key}") for key in maximize))


def requirements(texts: Sequence[str]) -> tuple[Requirement, ...]:
    """What a trial must meet; raises ConfigError and UnknownName."""
    return tuple(Requirement.parse(text, "--subject-to") for text in texts)


def check_plan(plan: TunePlan, trials: int, on: str, address: str | None) -> None:
    """Raise KsimError for a tuning that there cannot be, before anything is run or written."""
    check(on, address)
    if find_spec("optuna") is None:
        raise MissingExtra("tune", "ksim tune")
    for flag, value in (("--trials", trials), ("--round", plan.round), ("--repeat", plan.repeat)):
        if value < 1:
            raise ConfigError(flag, f"expected at least 1, not {value}")
    from ksim.study.tuning.search import Search

    Search.of(plan.space, plan.sampler, plan.seed, plan.directions, constrained=True)
    check_names(plan.scenario, plan.corners())


def opened(plan: TunePlan, path: Path, title: str, resume: bool, force: bool) -> StudyDirectory:
    """The directory of the study at *path*: a new one, or, to *resume*, the one that is there."""
    text = plan.scenario.to_toml()
    if resume:
        return StudyDirectory.open(path, KIND, plan.command, text)
    return StudyDirectory.create(path, KIND, title, plan.command, text, force)


def search(plan: TunePlan, trials: int, keep: Callable[[Row], None], *, known: Mapping[tuple[int, int], Row] = {},
           asked: Callable[[Sequence[Row]], None] = lambda rows: None,
           told: Callable[[Sequence[Any]], None] = lambda ended: None, jobs: int | None = None, on: str = PROCESSES,
           address: str | None = None) -> None:
    """Run the rounds of *plan*; *keep* gets each run as it ends, *told* the trials of each round."""
    from ksim.study.tuning.rounds import Rounds

    with workers(jobs, on, address, most=min(trials, plan.round) * plan.repeat) as pool:
        for ended in Rounds(plan, pool, known, keep, asked).run(trials):
            told(ended)


def tune_into(study: StudyDirectory, plan: TunePlan, trials: int, on_end: Callable[[], None] = lambda: None,
              jobs: int | None = None, on: str = PROCESSES, address: str | None = None) -> None:
    """Run what *study* lacks, and write its tables and the best scenarios, whatever ends this.

    `on_end` is called for each run that ends.
    """
    from ksim.study.tuning.database import Database

    due: list[Row] = []

    def keep(row: Row) -> None:
        study.add(row)
        on_end()

    with Database.at(study.path, plan) as database:
        try:
            search(plan, trials, keep, known=dict(study.rows), asked=partial(_replace, due), told=database.add,
                   jobs=jobs, on=on, address=address)
        finally:
            study.finish([row for row in due if row.key not in study.rows])
            write_best(Tuning.read(study.path))


def _replace(kept: list[Row], rows: Sequence[Row]) -> None:
    kept[:] = rows


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given
