"""Compare measured load ladders of split and whole engines with simulations of them."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import field, frozen
from attrs.validators import ge

from ksim.foundation.errors import ConfigError
from ksim.simulation.processes import run_in_processes
from ksim.validation.ladders.play import Arm, Values, predict
from ksim.validation.ladders.rows import Row, read
from ksim.validation.ladders.setups import Setup, known

__all__ = ["Cell", "LadderReport", "Question", "Setup", "known", "validate"]


@frozen
class Question:
    """Which rows of the table at `path` to simulate: those of ladders with `ladder` in their names."""

    path: Path
    ladder: str = ""
    jobs: int = field(default=1, validator=ge(1))


@frozen
class Cell:
    """A row of the table, and what was predicted of it."""

    row: Row
    predicted: Values

    @property
    def errors(self) -> dict[str, float]:
        """Signed errors in per cent, by name, of what was measured."""
        return {name: 100 * (self.predicted[name] / value - 1) for name, value in self.row.measured.items()
                if name in self.predicted}


@frozen
class LadderReport:
    """The rows that were predicted, and how many were not, by reason."""

    cells: tuple[Cell, ...]
    reasons: Mapping[str, int]


def validate(question: Question, say: Callable[[int, int], None] = lambda done, of: None) -> LadderReport:
    """Simulate the arms of the rows; *say* is called with how many are done, and of how many.

    Raises DataError for a table that cannot be used, ConfigError where no row is asked for.
    """
    rows = [row for row in read(question.path) if question.ladder in row.ladder]
    if not rows:
        raise ConfigError(str(question.path), "has no ladder that is asked for; see --ladder")
    names = list(dict.fromkeys(row.name for row in rows))
    arms: dict[tuple[str, str, str], Arm] = {}
    for done, arm in enumerate(run_in_processes(predict, names, question.jobs), 1):
        arms[arm.name] = arm
        say(done, len(names))
    return _report(rows, arms)


def _report(rows: list[Row], arms: Mapping[tuple[str, str, str], Arm]) -> LadderReport:
    cells, reasons = [], Counter[str]()
    for row in rows:
        arm = arms[row.name]
        predicted = arm.whole if math.isnan(row.rate) else arm.stages.get(row.rate, {})
        if arm.reason or not predicted:
            reasons[arm.reason or "a stage that its recipe does not have"] += 1
        else:
            cells.append(Cell(row, predicted))
    return LadderReport(tuple(cells), dict(reasons.most_common()))
