"""Dates as arrivals."""

from datetime import UTC, datetime
from typing import Any

from ksim.workload.fields import shown
from ksim.workload.lines import Lines


def is_date(value: Any) -> bool:
    """Say whether *value* is a date and time as ISO 8601 writes them."""
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


class Dates:
    """Turns dates of ISO 8601, with or without fraction and zone, into seconds since the first of them.

    A date without a zone is UTC.  What is below 1 us is dropped.
    """

    def __init__(self, lines: Lines):
        self.lines = lines
        self.first: datetime | None = None
        lines.dates = True

    def seconds(self, value: Any, name: str) -> float:
        """Return the seconds from the first date to *value*, negative where it is earlier; raise DataError for none."""
        try:
            date = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            raise self.lines.error(f"{name} is {shown(value)}; expected a time such as 2023-11-16 18:15:46.6805900"
                                   ) from None
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        self.first = self.first or date
        return (date - self.first).total_seconds()
