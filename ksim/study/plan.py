"""The plan of a study, and the seeds of its replications.

`SweepPlan` and `RoutersPlan` list all runs; `TunePlan` and `CapacityPlan` choose the next runs by the results of the
last ones.  All are kept, resumed and refused alike.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from attrs import frozen

from ksim.foundation.errors import ConfigError
from ksim.foundation.rng import stream
from ksim.scenario.scenario import Scenario
from ksim.study import directory
from ksim.study.directory import StudyDirectory, StudyRuns
from ksim.study.grid import Settings

#: Told of each run that has ended.
OnEnd = Callable[[], None]


def silent() -> None:
    """Tell nobody."""


def replication_seed(seed: int, replication: int) -> int:
    """The seed of a replication of a scenario with *seed*: that itself for replication 0, else derived from both."""
    return int(stream(seed, f"replication {replication}").integers(2**31)) if replication else seed


@frozen
class StudyPlan:
    """The plan of a study of `scenario`; `kind` is the name of its command."""

    kind: ClassVar[str]
    scenario: Scenario

    @property
    def command(self) -> dict[str, Any]:
        """The options that tell this study from others of its scenario, for study.json."""
        raise NotImplementedError

    def seed(self, settings: Settings, replication: int) -> int:
        """The seed of a *replication* of the point with these *settings*.

        It is the same at every point, so that points are compared under the same requests.
        """
        seed = settings.get("seed")  # where that is no seed, the run says so
        return replication_seed(seed if isinstance(seed, int) else self.scenario.seed, replication)

    def check(self, path: Path | None, resume: bool = False, force: bool = False) -> None:
        """Raise ConfigError unless the study can be kept at *path*, or gone on with, before anything is run or written.

        Plans of settings that vary check their names, too: an unknown one is a mistake in any study.
        """
        if resume and path is None:
            raise ConfigError("--resume", "goes on with a study that is kept; name its directory with -o")
        if resume and path is not None:
            StudyDirectory.open(path, self.kind, self.command, self.scenario.to_toml()).close()
        elif path is not None:
            directory.check(path, force)

    @contextmanager
    def kept(self, path: Path | None, title: str, resume: bool = False, force: bool = False) -> Iterator[StudyRuns]:
        """The runs of the study at *path*: a new one, or, to *resume*, the one that is there; in memory without a path.
        """
        if path is None:
            yield StudyRuns()
            return
        text = self.scenario.to_toml()
        with (StudyDirectory.open(path, self.kind, self.command, text) if resume else
              StudyDirectory.create(path, self.kind, title, self.command, text, force)) as study:
            yield study
