"""Rows in order of arrival."""

from bisect import insort_right
from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter

from ksim.workload.ledger import Ledger
from ksim.workload.lines import Lines
from ksim.workload.row import Row

#: A row may stand so many rows after its place in the order of arrival.
WINDOW = 1024

_arrival = attrgetter("arrival")


def in_order(rows: Iterable[Row], lines: Lines, ledger: Ledger) -> Iterator[Row]:
    """Yield *rows* by arrival, those of equal arrival as they stood, while holding `WINDOW` of them.

    Raises DataError for a row that comes too late for that.
    """
    held: deque[Row] = deque()
    gone = float("-inf")
    for row in rows:
        if held and row.arrival < held[-1].arrival:
            if row.arrival < gone:
                raise lines.error(f"arrives more than {WINDOW:,} rows after its place in the order of arrival; "
                                  f"set sort = true to read the whole trace and sort it")
            ledger.reordered += 1
            insort_right(held, row, key=_arrival)
        else:
            held.append(row)
        if len(held) > WINDOW:
            first = held.popleft()
            gone = first.arrival
            yield first
    yield from held


def sort(rows: Iterable[Row], ledger: Ledger) -> list[Row]:
    """Return all *rows* by arrival, those of equal arrival as they stood."""
    everything = list(rows)
    latest = float("-inf")
    for row in everything:
        ledger.reordered += row.arrival < latest
        latest = max(latest, row.arrival)
    return sorted(everything, key=_arrival)


def from_zero(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield *rows* with their arrivals counted from that of the first."""
    origin = None
    for row in rows:
        origin = row.arrival if origin is None else origin
        yield row._replace(arrival=row.arrival - origin) if origin else row
