"""A row of a ladder beside what was predicted of it."""

from attrs import frozen

from ksim.validation.ladders.play import Values
from ksim.validation.ladders.rows import Row


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
