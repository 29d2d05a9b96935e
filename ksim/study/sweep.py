"""A sweep: one scenario, run at many points, each once or several times.

The runs of a sweep, or of any study: as tables, as a front, as a figure, and in a notebook.

Runs of a study, each in a worker, and kept as it ends.

The figure of a sweep: a number of its points over a setting or another number.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import define, field, frozen

from ksim.foundation.errors import ConfigError, MissingExtra, UnknownKey, UnknownName
from ksim.foundation.units import in_one_unit
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import try_to_build
from ksim.study import directory
from ksim.study.directory import StudyDirectory
from ksim.study.grid import (
    Axis,
    Outcome,
    Range,
    Sample,
    Settings,
    axes_of,
    outcome,
    points,
    replication_seed,
    value_text,
)
from ksim.study.pareto import TOLERATED, ParetoPoint, Requirement, objectives, rank
from ksim.study.rows import Row, SweepPoint, points_of, sweep_html, to_table
from ksim.study.workers import PROCESSES, Workers, check, workers

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

    from ksim.views.figures import Picture


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
    """Where a point is on the x axis, whose values have no unit in common: its number, or the text of its setting."""
    value = point.settings.get(x, point.value(x))
    plain = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return value if plain else value_text(value)


@define(eq=False, slots=False)
class Sweep:
    """The `rows` of a study by point and replication, and what they say together.

    A notebook shows the best points and the first ones.  `directory` is where the study is kept, if it is.
    """

    title: str
    rows: list[Row] = field(repr=False)
    directory: Path | None = None

    @classmethod
    def read(cls, directory: Path | str) -> "Sweep":
        """The study that is kept at *directory*, finished or not; raises ConfigError and DataError."""
        study = StudyDirectory.read(Path(directory))
        return cls(study.head.title, sorted(study.rows, key=lambda row: row.key), study.path)

    @cached_property
    def table(self) -> "pa.Table":
        """One row per run, as in runs.parquet."""
        return to_table(self.rows)

    @cached_property
    def points(self) -> list[SweepPoint]:
        """The points, each with its replications and their means."""
        return points_of(self.rows)

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

        By default, as of `ksim pareto`, in energy per output token and latency.
        """
        outcomes = [point.outcome for point in self.points]
        ranked = rank(outcomes, objectives(wanted), [*map(Requirement.parse, require)], max_rejected)
        return [point for point in ranked if point.on_front]

    def plot(self, x: str, y: str, by: str | None = None) -> "Picture":
        """Number *y* of the points over *x*, with a line for each value of *by*; bars are 95 % intervals of means.

        *x* is an axis or a number of a run, *by* is an axis.  Raises UnknownName for any other.
        """

        return sweep_plot(self.title, self.points, x, y, by)

    def _repr_html_(self) -> str:
        return sweep_html(self.title, self.rows)


def played(scenario: Scenario, rows: Sequence[Row], pool: Workers) -> Iterator[tuple[Row, Outcome]]:
    """Run *scenario* for each of *rows*; yield the row and how it went as each ends, in any order."""
    for place, ended in pool.run(partial(outcome, scenario), [row.changes for row in rows]):
        yield rows[place], ended


def run_rows(scenario: Scenario, rows: Sequence[Row], keep: Callable[[Row], None], jobs: int | None = None,
             on: str = PROCESSES, address: str | None = None) -> None:
    """Run *scenario* for each of *rows* with `workers`, and *keep* each row as it ends."""
    if not rows:
        return
    with workers(jobs, on, address, most=len(rows)) as pool:
        for row, ended in played(scenario, rows, pool):
            keep(Row.of(row.point, row.replication, row.seed, row.settings, ended))


def run_into(study: StudyDirectory, scenario: Scenario, rows: Sequence[Row], on_end: Callable[[], None] = lambda: None,
             jobs: int | None = None, on: str = PROCESSES, address: str | None = None,
             run: Callable[..., None] = run_rows) -> None:
    """Have *run* run those of *rows* that *study* does not have yet, and write its table, whatever ends this.

    `on_end` is called for each run that ends.
    """
    def keep(row: Row) -> None:
        study.add(row)
        on_end()

    try:
        run(scenario, study.without(rows), keep, jobs, on, address)
    finally:
        study.finish(study.without(rows))


def check_names(scenario: Scenario, points: Sequence[Settings],
                mistakes: tuple[type[Exception], ...] = (UnknownName, UnknownKey)) -> None:
    """Raise the UnknownName or UnknownKey of a name or key that is not there, before anything runs.

    That is a mistake in any study, unlike a model that does not fit, which is an answer.
    """
    for settings in _with_new_names(points):
        try:
            try_to_build(scenario.with_values(settings))
        except mistakes:
            raise
        except Exception:  # it will be the problem of this point
            continue


def _with_new_names(points: Sequence[Settings]) -> Iterator[Settings]:
    """Those of *points* in which a key or a value comes for the first time; numbers are no names."""
    known: set[tuple[str, str]] = set()
    for settings in points:
        names = {(key, "" if isinstance(value, int | float) else value_text(value)) for key, value in settings.items()}
        if not names <= known:
            known |= names
            yield settings


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
