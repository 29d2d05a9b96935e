"""Carry a tuning out, and keep what was run, in a directory or in memory."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path

from attrs import define, field

from ksim.foundation.errors import ConfigError, MissingExtra
from ksim.study import directory
from ksim.study.directory import StudyDirectory
from ksim.study.rows import Row
from ksim.study.running import check_names
from ksim.study.tuning.files import write_best
from ksim.study.tuning.plan import KIND, TunePlan
from ksim.study.tuning.tuning import Tuning
from ksim.study.workers import PROCESSES, check, workers


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
        from ksim.study.tuning.database import Database
        from ksim.study.tuning.rounds import Rounds

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
