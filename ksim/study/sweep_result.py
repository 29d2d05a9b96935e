"""The runs of a sweep, or of any study: as tables, as a front, as a figure, and in a notebook."""

from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, field

from ksim.foundation.errors import MissingExtra
from ksim.study.best import sweep_html
from ksim.study.directory import StudyDirectory
from ksim.study.means import SweepPoint, points_of
from ksim.study.objectives import Requirement
from ksim.study.pareto import TOLERATED, ParetoPoint, objectives, rank
from ksim.study.rows import Row, to_table

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

    from ksim.report.plots.picture import Picture


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
        from ksim.study.sweep_plot import sweep_plot

        return sweep_plot(self.title, self.points, x, y, by)

    def _repr_html_(self) -> str:
        return sweep_html(self.title, self.rows)
