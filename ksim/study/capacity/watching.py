"""Who sees the runs of a capacity question: the study's directory keeps a row of each, and progress counts them."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from attrs import define, field

from ksim.study.capacity.setups import SetUp
from ksim.study.capacity.traffic import replication_seed
from ksim.study.capacity.trial import Observation, Plan, Trial, runnable
from ksim.study.directory import StudyDirectory
from ksim.study.rows import FAILED, OK, Row

#: Told what is being done, how many parts of the question are done, and how many there are.
Say = Callable[[str, int, int], None]


def silent(text: str, done: int, parts: int) -> None:
    """Say nothing."""


@define
class Watch:
    """Counts runs and tells `say`; keeps rows in `directory`, if there is one.

    A point of the study is a set-up with some number of replicas at one rate, without or with one draw of the model's
    errors.  Points are numbered as they begin, which does not depend on the number of workers.
    """

    parts: int
    directory: StudyDirectory | None = None
    say: Say = silent
    runs: int = 0
    _done: int = -1
    _text: str = ""
    _points: dict[tuple[str, int, float, int | None], int] = field(factory=dict)

    def stage(self, text: str) -> None:
        self._done, self._text = self._done + 1, text
        self._tell()

    def begin(self, setup: SetUp, replicas: int, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._points.setdefault((setup.name, replicas, trial.rate, trial.draw), len(self._points) + 1)

    def end(self, setup: SetUp, replicas: int, plan: Plan, trial: Trial, observation: Observation) -> None:
        self.runs += 1
        self._tell()
        if self.directory is not None:
            point = self._points[setup.name, replicas, trial.rate, trial.draw]
            if (point, trial.replication) not in self.directory.rows:  # a study that goes on has it
                self.directory.add(_row(plan, point, setup, replicas, trial, observation))

    def _tell(self) -> None:
        self.say(f"{self._text} ({self.runs} runs)" if self.runs else self._text, max(0, self._done), self.parts)


def _row(plan: Plan, point: int, setup: SetUp, replicas: int, trial: Trial, seen: Observation) -> Row:
    numbers = {"request_rate": trial.rate, "replicas": replicas, "model_errors": trial.draw is not None}
    return Row(point, trial.replication, replication_seed(plan.seed, trial.replication), setup.settings,
               status=FAILED if seen.hopeless else OK, problem=seen.hopeless, numbers={**numbers, **seen.numbers},
               scenario=runnable(plan, trial).to_toml())


def finished(directory: StudyDirectory | None) -> None:
    """Write the table of the runs so far, however the study has ended."""
    if directory is not None:
        with suppress(OSError):
            directory.finish()
