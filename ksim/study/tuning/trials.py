"""The trials of a tuning: the best of them, the front, and how the others ended."""

from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

from attrs import define, field

from ksim.foundation.errors import MissingExtra
from ksim.study.axes import axes_of
from ksim.study.directory import StudyDirectory
from ksim.study.means import SweepPoint, points_of
from ksim.study.objectives import Objective, Requirement
from ksim.study.pareto import ParetoPoint, rank
from ksim.study.rows import FAILED, OK, STOPPED, Row
from ksim.study.tuning.space import Space

if TYPE_CHECKING:
    import pandas


@define(eq=False, slots=False)
class Trials:
    """The trials of a tuning, as far as they were run; points are numbered by trial.

    `wanted` are its objectives, `required` what a trial must meet to count, `tolerated` the share of requests that it
    may reject, `space` where they were looked for.  `directory` is where the study is kept, if it is.
    """

    title: str
    rows: list[Row] = field(repr=False)
    wanted: Sequence[Objective]
    required: Sequence[Requirement]
    tolerated: float
    space: Space
    directory: Path | None = None

    @classmethod
    def read(cls, directory: Path | str) -> Self:
        """The tuning that is kept at *directory*, finished or not; raises ConfigError and DataError."""
        study = StudyDirectory.read(Path(directory))
        said = study.head.command
        return cls(study.head.title, sorted(study.rows, key=lambda row: row.key),
                   [*map(Objective.parse, said["objectives"])], [*map(Requirement.parse, said["require"])],
                   said["max_rejected"], Space.of(axes_of(said["space"])), study.path)

    @cached_property
    def points(self) -> list[SweepPoint]:
        """The trials, each with its replications and their means."""
        return points_of(self.rows)

    @cached_property
    def ranked(self) -> list[ParetoPoint]:
        """All trials, numbered by their place: the best first, or the front; then others; then what does not count."""
        return rank([point.outcome for point in self.points], self.wanted, self.required, self.tolerated)

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
        """How many trials there were, by how they ended: ok, failed, stopped or not run."""
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
