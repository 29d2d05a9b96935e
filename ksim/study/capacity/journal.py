"""The runs of a question of capacity: counted, kept as rows of a study, and remembered until it is answered."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
from attrs import define, field

from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.files import DAMAGED, arrays, replacing
from ksim.study.capacity.trial import Criteria, Observation, RateRun, TargetSample, runnable
from ksim.study.directory import StudyDirectory
from ksim.study.grid import Settings
from ksim.study.plan import replication_seed
from ksim.study.rows import FAILED, OK, RunRow

#: What a study has once its question is answered.
ANSWERS = ("capacity.json", "plan.json")
_FOLDER = "observations"


def check_unanswered(study: Path) -> None:
    """Raise ConfigError for a *study* that has nothing left to run."""
    if any((study / answer).is_file() for answer in ANSWERS):
        raise ConfigError(str(study), f"is finished, so there is nothing to go on with; `ksim report {study}` shows it,"
                                      f" --force starts anew")


#: Told what is being done, how many parts of the question are done, and how many there are.
Say = Callable[[str, int, int], None]


def silent(text: str, done: int, parts: int) -> None:
    """Say nothing."""


@define
class Journal:
    """Counts the runs of a question and tells `say`; keeps a row of each in `directory`, if there is one.

    A row has the numbers of a run, but the answer depends on its single requests.  So observations are kept, too, until
    the question is answered, and a question whose process was killed goes on from there.

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

    def begin(self, setup: str, replicas: int, runs: Sequence[RateRun]) -> None:
        """*runs* of the set-up of this name begin, with so many *replicas*."""
        for run in runs:
            self._points.setdefault((setup, replicas, run.rate, run.draw), len(self._points) + 1)

    def end(self, setup: str, settings: Settings, replicas: int, criteria: Criteria, run: RateRun, seen: Observation
            ) -> None:
        """One of them has ended, by *criteria* with as many requests as it needed."""
        self.runs += 1
        self._tell()
        if self.directory is not None:
            point = self._points[setup, replicas, run.rate, run.draw]
            if (point, run.replication) not in self.directory.rows:  # a study that goes on has it
                self.directory.add(_row(criteria, point, settings, replicas, run, seen))

    def recall(self, criteria: Criteria, run: RateRun) -> Observation | None:
        """The observation of *run* by an earlier process of this study; None if there is none."""
        return None if self.directory is None else _read(_file(self.directory, criteria, run))

    def remember(self, criteria: Criteria, run: RateRun, seen: Observation) -> None:
        """Keep the observation of *run*."""
        if self.directory is not None:
            _write(_file(self.directory, criteria, run), seen)

    def forget(self) -> None:
        """Remove what was kept of the runs: the question is answered."""
        if self.directory is not None:
            shutil.rmtree(self.directory.path / _FOLDER, ignore_errors=True)

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Write the table of the runs so far at the end of the block, whatever ends it."""
        try:
            yield
        finally:
            if self.directory is not None:
                with suppress(OSError):
                    self.directory.finish()

    def _tell(self) -> None:
        self.say(f"{self._text} ({self.runs} runs)" if self.runs else self._text, max(0, self._done), self.parts)


def _row(criteria: Criteria, point: int, settings: Settings, replicas: int, run: RateRun, seen: Observation) -> RunRow:
    numbers = {"request_rate": run.rate, "replicas": replicas, "model_errors": run.draw is not None}
    return RunRow(point, run.replication, replication_seed(criteria.seed, run.replication), settings,
               status=FAILED if seen.hopeless else OK, problem=seen.hopeless, numbers={**numbers, **seen.numbers},
               scenario=runnable(criteria, run).to_toml())


def _file(study: StudyDirectory, criteria: Criteria, run: RateRun) -> Path:
    """The file of the observation of *run*; its name is a hash of everything that the observation depends on."""
    text = repr((criteria, run.scenario.to_toml(), run.rate, run.replication, run.draw))
    return study.path / _FOLDER / f"{sha256(text.encode()).hexdigest()[:32]}.npz"


def _write(file: Path, seen: Observation) -> None:
    head = {"rate": seen.rate, "replication": seen.replication, "draw": seen.draw, "saturated": seen.saturated,
            "hopeless": seen.hopeless, "numbers": dict(seen.numbers), "ends": [sample.end for sample in seen.samples]}
    values = {f"{name}{number}": getattr(sample, name) for number, sample in enumerate(seen.samples)
              for name in ("amount", "counted", "value")}
    with replacing(file) as partial_file, partial_file.open("wb") as opened:
        np.savez_compressed(opened, head=json.dumps(head), good=seen.good, **values)


def _read(file: Path) -> Observation | None:
    """The observation in *file*; None if there is no file, or it is damaged."""
    with suppress(DataError, *DAMAGED):
        kept = arrays(file)
        head = json.loads(str(kept["head"]))
        samples = [TargetSample(kept[f"amount{number}"], kept[f"counted{number}"], kept[f"value{number}"], end)
                   for number, end in enumerate(head.pop("ends"))]
        return Observation(**head, samples=samples, good=kept["good"])
    return None
