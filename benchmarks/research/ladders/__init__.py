"""Compare measured load ladders of fleets with simulations of them."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import field, frozen
from attrs.validators import ge

from benchmarks.research.ladders import play
from benchmarks.research.ladders.play import (
    Arm,
    Cell,
    Compared,
    Name,
    Row,
    Setup,
    Values,
    compare,
    known,
    predict,
    read_rows,
)
from ksim.foundation.errors import ConfigError
from ksim.simulation.processes import run_in_processes

__all__ = ["Cell", "Compared", "LadderReport", "Question", "Setup", "known", "validate"]


@frozen
class Question:
    """Which rows of the table at `path` to simulate: of ladders with `ladder`, and arms with `arm`, in their names.

    A file `recipes` has setups that go before those that ksim knows.
    """

    path: Path
    ladder: str = ""
    arm: str = ""
    recipes: Path | None = None
    seed: int = field(default=0, validator=ge(0))
    jobs: int = field(default=1, validator=ge(1))


@frozen
class LadderReport:
    """The rows that were predicted, and how many were not, by reason."""

    cells: tuple[Cell, ...]
    reasons: Mapping[str, int]

    @property
    def compared(self) -> list[Compared]:
        """Where queues begin, and what arms gain."""
        return compare(self.cells)


def validate(question: Question, say: Callable[[int, int], None] = lambda done, of: None) -> LadderReport:
    """Simulate the arms of the rows; *say* is called with how many are done, and of how many.

    Raises DataError for a table or recipes that cannot be used, ConfigError where no row is asked for.
    """
    rows = [row for row in read_rows(question.path) if question.ladder in row.ladder and question.arm in row.arm]
    if not rows:
        raise ConfigError(str(question.path), "has no ladder that is asked for; see --ladder and --arm")
    recipes = (*(play.read_setups(question.recipes) if question.recipes else ()), *play.known())
    tasks = [(name, recipes, question.seed) for name in dict.fromkeys(row.name for row in rows)]
    arms: dict[Name, Arm] = {}
    for done, arm in enumerate(run_in_processes(predict, tasks, question.jobs), 1):
        arms[arm.name] = arm
        say(done, len(tasks))
    return _report(rows, arms)


def _report(rows: list[Row], arms: Mapping[Name, Arm]) -> LadderReport:
    cells, reasons = [], Counter[str]()
    for row in rows:
        arm = arms[row.name]
        predicted = _of(row, arm)
        if arm.reason or not predicted:
            reasons[arm.reason or "a stage that its recipe does not have"] += 1
        else:
            cells.append(Cell(row, predicted))
    return LadderReport(tuple(cells), dict(reasons.most_common()))


def _of(row: Row, arm: Arm) -> Values:
    if not math.isnan(row.rate):
        return arm.stages.get(row.rate, {})
    return arm.means if row.stage == "mean_of_stages" else arm.whole
