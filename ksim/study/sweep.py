"""A sweep: one scenario, run at many points, each once or several times.

`SweepPlan` lists the runs and has them computed; a `Sweep` is what came out, as tables, a front, a figure, or in a
notebook.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from attrs import define, field, frozen

from ksim.foundation.errors import ConfigError, MissingExtra, UnknownName
from ksim.foundation.units import in_one_unit
from ksim.scenario.scenario import Scenario
from ksim.study.directory import StudyDirectory, StudyRuns, is_study
from ksim.study.experiment import check_names, explained, outcome
from ksim.study.grid import Range, Sample, Settings, SettingValues, axes_of, points, value_text
from ksim.study.pareto import TOLERATED, Goals, ParetoPoint
from ksim.study.plan import OnEnd, StudyPlan, silent
from ksim.study.rows import RunRow, SweepPoint, points_of, sweep_html, to_table
from ksim.study.workers import HERE, PROCESSES, Where

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

    from ksim.views.figures import Picture


__all__ = ["HERE", "StudyDirectory", "StudyResult", "Sweep", "SweepPlan", "Where", "is_study", "sweep", "sweep_plot"]


def sweep_plot(title: str, points: Sequence[SweepPoint], x: str, y: str, by: str | None = None) -> "Picture":
    """A line over *x* for each value of *by*; points that failed, or have no such number, are left out.

    Quantities, such as "400 W", are numbers on the axis, which names their unit.

    Raises UnknownName for what is neither an axis nor a number of the runs.
    """
    from ksim.views.figures.studies import Curve, sweep_chart

    _check(points, x, y, by)
    lines: dict[str, list[tuple[Any, float, float]]] = {}
    places: Sequence[float | str | None]
    places, unit = in_one_unit([point.settings.get(x, point.value(x)) for point in points]) or (
        [_place(point, x) for point in points], "")  # type: ignore[misc]
    for place, point in zip(places, points, strict=True):
        value = point.value(y)
        if place is not None and value is not None:
            name = value_text(point.settings.get(by)) if by else ""
            lines.setdefault(name, []).append((place, value, point.half_width(y)))
    if any(isinstance(place, str) for line in lines.values() for place, *_ in line):
        lines = {name: [(value_text(place), value, width) for place, value, width in line]
                 for name, line in lines.items()}
    else:
        lines = {name: sorted(line) for name, line in lines.items()}
    return sweep_chart(title, f"{x}, {unit}" if unit else x, y, by or "", [Curve(*line) for line in lines.items()])


def _check(points: Sequence[SweepPoint], x: str, y: str, by: str | None) -> None:
    """Raise UnknownName unless the points have these columns."""
    axes = list(dict.fromkeys(key for point in points for key in point.settings))
    numbers = list(dict.fromkeys(key for point in points for row in point.rows for key in row.numbers))
    for key, known in ((x, axes + numbers), (y, numbers), *([(by, axes)] if by else [])):
        if key not in known:
            raise UnknownName("column of the sweep", key, known)


def _place(point: SweepPoint, x: str) -> float | str | None:
    """The x of a point whose axis has no unit in common: a number, or the text of its setting."""
    value = point.settings.get(x, point.value(x))
    plain = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return value if plain else value_text(value)


@define(eq=False, slots=False)
class StudyResult:
    """The `rows` of a study by point and replication; `directory` is where the study is kept, if it is."""

    title: str
    rows: list[RunRow] = field(repr=False)
    directory: Path | None = None

    @classmethod
    def read(cls, directory: Path | str) -> Self:
        """The study that is kept at *directory*, finished or not; raises ConfigError and DataError."""
        study = StudyDirectory.read(Path(directory))
        return cls(study.head.title, sorted(study.rows, key=lambda row: row.key), study.path)

    @classmethod
    def of(cls, title: str, study: StudyRuns) -> Self:
        """The result of *study* by now: read again where it is kept, as its table has it."""
        if isinstance(study, StudyDirectory):
            return cls.read(study.path)
        return cls(title, [study.rows[key] for key in sorted(study.rows)])

    @cached_property
    def table(self) -> "pa.Table":
        """One row per run, as in runs.parquet."""
        return to_table(self.rows)

    @cached_property
    def points(self) -> list[SweepPoint]:
        """The points, each with its replications and their means."""
        return points_of(self.rows)


@define(eq=False, slots=False)
class Sweep(StudyResult):
    """The result of a sweep; a notebook shows the best points and the first ones."""

    def to_pandas(self, means: bool = False) -> "pandas.DataFrame":
        """One row per run; or, for *means*, one per point, with the mean of its replications.

        Beside a mean is half the width of its 95 % interval, as ``KEY_half_width``.  Raises MissingExtra where pandas
        is not installed.
        """
        if find_spec("pandas") is None:
            raise MissingExtra("pandas", "sweep.to_pandas()")
        import pandas

        return pandas.DataFrame([point.record() for point in self.points]) if means else self.table.to_pandas()

    def front(self, *wanted: str, require: Sequence[str] = (), max_rejected: float = TOLERATED) -> list[ParetoPoint]:
        """The points that no other beats in all *wanted* numbers, each "KEY" or "max:KEY", and that meet *require*.

        By default, as of `ksim sweep --front`, in energy per output token and latency.
        """
        goals = Goals.parse(wanted, require, max_rejected)
        return [point for point in goals.rank([point.outcome for point in self.points]) if point.on_front]

    def plot(self, x: str, y: str, by: str | None = None) -> "Picture":
        """Number *y* of the points over *x*, with a line for each value of *by*; bars are 95 % intervals of means.

        *x* is an axis or a number of a run, *by* is an axis.  Raises UnknownName for any other.
        """

        return sweep_plot(self.title, self.points, x, y, by)

    def _repr_html_(self) -> str:
        return sweep_html(self.title, self.rows)


@frozen
class SweepPlan(StudyPlan):
    """The runs of a sweep: `scenario` at every point of the `axes`, or at those of a `sample`, each `repeat` times.

    With `phases`, runs say what their requests' time consists of, so that points can be told apart by it.
    """

    kind: ClassVar[str] = "sweep"
    axes: tuple[SettingValues | Range, ...]
    sample: Sample | None = None
    repeat: int = 1
    phases: bool = False

    def __attrs_post_init__(self) -> None:
        if self.repeat < 1:
            raise ConfigError("--repeat", f"expected at least 1, not {self.repeat}")
        if self.repeat > 1 and "seed" in (axis.key for axis in self.axes):
            raise ConfigError("--over", "seed: --repeat varies the seed already; leave one of both out")

    @property
    def command(self) -> dict[str, Any]:
        over = {axis.key: list(axis.values) if isinstance(axis, SettingValues) else str(axis) for axis in self.axes}
        return {"over": over, "sample": str(self.sample) if self.sample else None, "repeat": self.repeat}

    @property
    def points(self) -> list[Settings]:
        """The settings of each point, in order."""
        return points(self.axes, self.sample, self.scenario.seed)

    @property
    def rows(self) -> list[RunRow]:
        """All runs, not run yet, by point and replication."""
        return [RunRow(number, replication, self.seed(settings, replication), settings)
                for number, settings in enumerate(self.points, 1) for replication in range(self.repeat)]

    def check(self, path: Path | None, resume: bool = False, force: bool = False) -> None:
        super().check(path, resume, force)
        check_names(self.scenario, self.points)

    def carry_out(self, study: StudyRuns, where: Where = HERE, on_end: OnEnd = silent) -> None:
        """Run what *study* lacks, keep each run as it ends, and write the table of all, whatever ends this.

        `on_end` is called for each run that ends.
        """
        def keep(row: RunRow) -> None:
            study.add(row)
            on_end()

        rows = self.rows
        try:
            if left := study.without(rows):
                self.run(left, keep, where)
        finally:
            study.finish(study.without(rows))

    def run(self, rows: Sequence[RunRow], keep: Callable[[RunRow], None], where: Where) -> None:
        """Compute each of *rows*, of which there is one at least, and *keep* it as it ends."""
        with where.workers(most=len(rows)) as pool:
            play = explained if self.phases else outcome
            for number, ended in pool.run(partial(play, self.scenario), [row.changes for row in rows]):
                keep(rows[number].ended(ended))


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
    where, path = Where(jobs, on, address), None if output is None else Path(output)
    plan.check(path, resume, force)
    title = f"Sweep of {Path(scenario.model).name}"
    with plan.kept(path, title, resume, force) as study:
        plan.carry_out(study, where)
    return Sweep.of(title, study)
