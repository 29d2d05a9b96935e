"""What a part of the benchmarks found: tables, and goals with what was measured of them."""

from collections.abc import Iterator, Sequence

from attrs import field, frozen
from rich.table import Table

from benchmarks.yardstick import STANDARD, scaled

#: The columns of a table of goals.
GOALS = ("goal", "limit", "here", "SimPy us/event", "scaled", "met")


@frozen
class Goal:
    """At most *limit* of *unit*, or where it is the *least*, at least so much; what is *timed* depends on the CPU."""

    what: str
    limit: float
    unit: str
    least: bool = False
    timed: bool = True

    def judged(self, found: float, yardstick: float) -> tuple[str, ...]:
        """A row under `GOALS`: what was *found* here, and what that is where the yardstick takes `STANDARD`."""
        pace = yardstick if self.timed else STANDARD
        there = found * pace / STANDARD if self.least else scaled(found, pace)
        limit = f"{'>=' if self.least else '<='} {self.limit:g} {self.unit}"
        said = f"{yardstick:.2f}" if self.timed else ""
        return self.what, limit, f"{found:.4g}", said, f"{there:.4g}", self._met(found, there)

    def _met(self, found: float, scaled: float) -> str:
        here, there = (value >= self.limit if self.least else value <= self.limit for value in (found, scaled))
        if here == there:
            return "yes" if here else "NO"
        return "scaled only" if there else "here only"


@frozen
class Sheet:
    """A table: its first column are names, the others numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def rich(self) -> Table:
        """As it is printed."""
        table = Table()
        for place, column in enumerate(self.columns):
            table.add_column(column, justify="right" if place else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> Iterator[str]:
        """As it stands in a page."""
        yield f"{self.title}:"
        yield ""
        yield f"| {' | '.join(self.columns)} |"
        yield f"|---|{'--:|' * (len(self.columns) - 1)}"
        for row in self.rows:
            yield f"| {' | '.join(row)} |"
        yield ""


@frozen
class Findings:
    """The tables of a part, and the rows of its goals."""

    sheets: Sequence[Sheet]
    judged: Sequence[Sequence[str]] = field(default=())

    @property
    def all(self) -> Sequence[Sheet]:
        """The tables, the goals last."""
        return (*self.sheets, Sheet("Goals", GOALS, self.judged)) if self.judged else self.sheets
