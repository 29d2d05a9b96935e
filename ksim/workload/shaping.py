"""Streams of rows on their way from a trace to a workload: ordered, limited in length, spread in time."""

from bisect import insort_right
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from math import inf
from operator import attrgetter

import numpy as np
from attrs import frozen

from ksim.foundation.errors import DataError
from ksim.workload.lines import Lines
from ksim.workload.rows import Ledger, Row, follows

#: The most rows by which a row may be late in the order of arrival.
WINDOW = 1024

_arrival = attrgetter("arrival")


def in_order(rows: Iterable[Row], lines: Lines, ledger: Ledger) -> Iterator[Row]:
    """Yield *rows* by arrival, ties in the order of the file, while holding `WINDOW` of them in memory.

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
    """Return all *rows* by arrival, ties in the order of the file."""
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


#: The most requests of one arrival that are compared to find duplicates.
_COMPARED = 10_000

@frozen
class LengthLimits:
    """The most tokens of a prompt, and of a request; None means no limit."""

    max_prompt: int | None
    max_tokens: int | None
    overlong: str
    path: str

    def apply(self, rows: Iterable[Row], ledger: Ledger) -> Iterator[Row]:
        """Yield *rows* with those over a limit dropped or clipped, as `overlong` says.

        Raises DataError at the first of them where it says "error".
        """
        max_prompt, max_tokens = self.max_prompt or inf, self.max_tokens or inf
        for row in rows:
            if row.prompt <= max_prompt and row.prompt + row.output <= max_tokens:
                yield row
            elif self.overlong == "clip":
                ledger.clipped += 1
                yield self._clipped(row)
            elif self.overlong == "drop":
                ledger.overlong += 1
            else:
                raise DataError(self.path, f"row {ledger.rows:,} by arrival, {row.prompt:,} prompt and {row.output:,} "
                                           f"output tokens, is over the limit; set overlong to 'drop' or 'clip'")

    def _clipped(self, row: Row) -> Row:
        """Cut the prompt; cut the output only if the prompt would be left without a token."""
        total = row.prompt + row.output if self.max_tokens is None else self.max_tokens
        output = min(row.output, total - 1)
        prompt = min(row.prompt, total - output, self.max_prompt or row.prompt)
        # A chunk that is cut no longer has the content of its name.
        whole = len(row.chunks) if prompt == row.prompt else prompt // row.chunk_tokens
        return row._replace(prompt=prompt, output=output, chunks=row.chunks[:whole])


def note_ties(rows: Iterable[Row], ledger: Ledger) -> Iterator[Row]:
    """Yield *rows*; count ties, and duplicates among them."""
    previous = None
    seen: set[tuple[object, ...]] = set()
    for row in rows:
        if previous is None or row.arrival != previous.arrival:
            seen.clear()
        else:
            ledger.ties += not follows(row, previous)
        previous = row
        content = row[1:]
        ledger.duplicates += content in seen
        if len(seen) < _COMPARED:
            seen.add(content)
        yield row


def spread_ties(rows: Iterable[Row], step: float, rng: "np.random.Generator") -> Iterator[Row]:
    """Yield *rows* with ties moved, in their order, to uniformly random places within *step* seconds.

    Turns that wait for others of their session stay with them.
    """
    for arrival, group in groupby(rows, key=_arrival):
        ties = list(group)
        places = iter(np.sort(rng.random(len(ties))).tolist() if len(ties) > 1 else [0.0])
        place, previous = 0.0, None
        for row in ties:
            place = place if follows(row, previous) else next(places)
            previous = row
            yield row._replace(arrival=arrival + step * place) if place else row
