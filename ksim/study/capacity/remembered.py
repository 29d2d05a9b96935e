"""Runs of a question of capacity that outlive its process: what each has shown is kept until the question is answered.

A study's rows have the numbers of a run; the answer follows from its requests, one by one.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.files import DAMAGED, arrays, replacing
from ksim.study.capacity.trial import Observation, Plan, Sample, Trial, observe
from ksim.study.directory import StudyDirectory
from ksim.study.workers import Workers

__all__ = ["Remembering", "check_unanswered", "forget"]

#: What a study has once its question is answered.
ANSWER = "capacity.json"
_FOLDER = "observations"


def check_unanswered(study: Path) -> None:
    """Raise ConfigError for a *study* that has nothing left to run."""
    if (study / ANSWER).is_file():
        raise ConfigError(str(study), f"is finished, so there is nothing to go on with; `ksim report {study}` shows it,"
                                      f" --force starts anew")


def forget(study: StudyDirectory) -> None:
    """Remove what was kept of the runs of *study*: its question is answered."""
    shutil.rmtree(study.path / _FOLDER, ignore_errors=True)


@frozen
class Remembering:
    """`workers` that run no trial which a killed process has run for the same `study`."""

    workers: Workers
    study: StudyDirectory

    @property
    def count(self) -> int:
        return self.workers.count

    def run(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Do as `Workers.run`; what trials have shown is read where it was kept, and kept where it was not."""
        if not isinstance(work, partial) or work.func is not observe:
            yield from self.workers.run(work, items)
            return
        files = [self._file(work.args[0], trial) for trial in items]
        known = {place: seen for place, file in enumerate(files) if (seen := _read(file)) is not None}
        yield from known.items()
        new = [place for place in range(len(items)) if place not in known]
        for at, seen in self.workers.run(work, [items[place] for place in new]):
            _write(files[new[at]], seen)
            yield new[at], seen

    def _file(self, plan: Plan, trial: Trial) -> Path:
        """Where it is kept what *trial* has shown; the name follows from all that decides that."""
        said = repr((plan, trial.scenario.to_toml(), trial.rate, trial.replication, trial.draw))
        return self.study.path / _FOLDER / f"{sha256(said.encode()).hexdigest()[:32]}.npz"


def _write(file: Path, seen: Observation) -> None:
    head = {"rate": seen.rate, "replication": seen.replication, "draw": seen.draw, "saturated": seen.saturated,
            "hopeless": seen.hopeless, "numbers": dict(seen.numbers), "ends": [sample.end for sample in seen.samples]}
    values = {f"{name}{place}": getattr(sample, name) for place, sample in enumerate(seen.samples)
              for name in ("amount", "counted", "value")}
    with replacing(file) as partial_file, partial_file.open("wb") as opened:
        np.savez_compressed(opened, head=json.dumps(head), good=seen.good, **values)


def _read(file: Path) -> Observation | None:
    """What was kept in *file*; None where nothing was, or where it is damaged."""
    with suppress(DataError, *DAMAGED):
        kept = arrays(file)
        head = json.loads(str(kept["head"]))
        samples = [Sample(kept[f"amount{place}"], kept[f"counted{place}"], kept[f"value{place}"], end)
                   for place, end in enumerate(head.pop("ends"))]
        return Observation(**head, samples=samples, good=kept["good"])
    return None
