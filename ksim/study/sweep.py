"""A sweep: one scenario, run at many points, each once or several times."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from attrs import frozen

from ksim.foundation.errors import ConfigError
from ksim.simulation.scenario import Scenario
from ksim.study import directory
from ksim.study.axes import Range, axes_of
from ksim.study.directory import StudyDirectory
from ksim.study.grid import Axis, Settings
from ksim.study.rows import Row
from ksim.study.running import check_names, run_into, run_rows
from ksim.study.samples import Sample, points, replication_seed
from ksim.study.sweep_result import Sweep
from ksim.study.workers import PROCESSES, check


@frozen
class SweepPlan:
    """What a sweep runs: `scenario` at every point of the `axes`, or at those of a `sample`, each `repeat` times."""

    kind: ClassVar[str] = "sweep"
    scenario: Scenario
    axes: tuple[Axis | Range, ...]
    sample: Sample | None = None
    repeat: int = 1

    def __attrs_post_init__(self) -> None:
        if self.repeat < 1:
            raise ConfigError("--repeat", f"expected at least 1, not {self.repeat}")
        if self.repeat > 1 and "seed" in (axis.key for axis in self.axes):
            raise ConfigError("--over", "seed: --repeat varies the seed already; leave one of both out")

    @property
    def command(self) -> dict[str, Any]:
        """What tells this sweep of its scenario from another, for study.json."""
        over = {axis.key: list(axis.values) if isinstance(axis, Axis) else str(axis) for axis in self.axes}
        return {"over": over, "sample": str(self.sample) if self.sample else None, "repeat": self.repeat}

    @property
    def points(self) -> list[Settings]:
        """The settings of each point, in order."""
        return points(self.axes, self.sample, self.scenario.seed)

    @property
    def rows(self) -> list[Row]:
        """All runs, not run yet, by point and replication.

        A replication has the same seed at every point, so that points are compared under the same requests.
        """
        return [Row(number, replication, self._seed(settings, replication), settings)
                for number, settings in enumerate(self.points, 1) for replication in range(self.repeat)]

    def check(self, path: Path, resume: bool = False, force: bool = False) -> None:
        """Raise ConfigError unless the directory of this sweep can be at *path*, before anything else is done."""
        if resume:
            StudyDirectory.open(path, self.kind, self.command, self.scenario.to_toml()).close()
        else:
            directory.check(path, force)

    def study(self, path: Path, title: str, resume: bool = False, force: bool = False) -> StudyDirectory:
        """The directory of this sweep at *path*: a new one, or, to *resume*, the one that is there."""
        text = self.scenario.to_toml()
        if resume:
            return StudyDirectory.open(path, self.kind, self.command, text)
        return StudyDirectory.create(path, self.kind, title, self.command, text, force)

    def _seed(self, settings: Settings, replication: int) -> int:
        seed = settings.get("seed")  # where that is no seed, the run says so
        return replication_seed(seed if isinstance(seed, int) else self.scenario.seed, replication)


def sweep(scenario: Scenario | str | Path, over: Mapping[str, Any] | Iterable[str], sample: str | None = None,
          repeat: int = 1, jobs: int | None = None, on: str = PROCESSES, output: Path | str | None = None,
          resume: bool = False, force: bool = False, address: str | None = None) -> Sweep:
    """Run *scenario* at every point of *over*, or at a *sample* of them ("latin:200"), each *repeat* times.

    *over* has the values of each key: a list, or a text such as "16:256:log" for a sample.  Runs are computed in *jobs*
    processes, by default one per CPU, or *on* "ray".  With *output*, every run is kept there as it ends, and *resume*
    goes on with what is there.  A run that fails is a row with its problem.  Raises KsimError for what no run can have.
    """
    scenario = scenario if isinstance(scenario, Scenario) else Scenario.read(scenario)
    plan = SweepPlan(scenario, tuple(axes_of(over)), Sample.parse(sample) if sample else None, repeat)
    check(on, address)
    rows, title = plan.rows, f"Sweep of {Path(scenario.model).name}"
    check_names(scenario, plan.points)
    if output is None:
        ended: list[Row] = []
        run_rows(scenario, rows, ended.append, jobs, on, address)
        return Sweep(title, sorted(ended, key=lambda row: row.key))
    with plan.study(Path(output), title, resume, force) as study:
        run_into(study, scenario, rows, jobs=jobs, on=on, address=address)
    return Sweep.read(output)
