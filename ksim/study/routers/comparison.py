"""The result of a comparison of routers: a table, a figure, and what a notebook shows."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define

from ksim.report.formats import html_block, html_table
from ksim.report.tables import Table, as_text
from ksim.report.wording import UNLIMITED
from ksim.study.directory import StudyDirectory
from ksim.study.means import SweepPoint
from ksim.study.routers.telling import age, explained, notes, ranked, router_of, shown
from ksim.study.sweep_result import Sweep

if TYPE_CHECKING:
    from ksim.report.plots.picture import Picture


@define(eq=False, slots=False)
class RouterComparison(Sweep):
    """The `rows` of a comparison, and what they say together; the router with the least mean e2e regret comes first."""

    @classmethod
    def read(cls, directory: Path | str) -> "RouterComparison":
        """The comparison that is kept at *directory*, finished or not; raises ConfigError and DataError."""
        study = StudyDirectory.read(Path(directory))
        return cls(study.head.title, sorted(study.rows, key=lambda row: row.key), study.path)

    @property
    def ranking(self) -> list[SweepPoint]:
        """The points that went well: routers by their e2e regret with the first signals, each by its signals."""
        return ranked(self.points)

    @property
    def shown(self) -> Table:
        """What tells the routers apart, a line for each router and age of signals."""
        return shown(self.ranking)

    @property
    def notes(self) -> list[str]:
        """How many runs there are, and which routers cannot run, with the reason."""
        return [*notes(self.points)]

    @property
    def explanations(self) -> list[str]:
        """What may surprise in the table: regrets below 0, and routers that are the same at all ages."""
        return [*explained(self.ranking)]

    @property
    def text(self) -> str:
        """The table as plain text."""
        return as_text(self.shown, UNLIMITED).strip()

    def records(self) -> list[dict[str, Any]]:
        """A table of all points: router, age of signals, means and half widths of all numbers; None if unknown."""
        return [{"router": router_of(point), "age": age(point),
                 **{key: None if isinstance(value, float) and math.isnan(value) else value
                    for key, value in point.record().items() if key not in point.settings}} for point in self.points]

    def plot(self, *keys: Any, **more: Any) -> "Picture":
        """What tells the routers apart, side by side; with arguments, as `Sweep.plot`."""
        if keys or more:
            return super().plot(*keys, **more)
        from ksim.study.routers.picture import picture

        return picture(self.title, self.ranking)

    def _repr_html_(self) -> str:
        return html_block(self.title, html_table(self.shown), *self.notes, *self.explanations)
