"""Changes to rows on their way from a trace to a workload."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from math import inf
from operator import attrgetter

import numpy as np
from attrs import frozen

from ksim.foundation.errors import DataError
from ksim.workload.ledger import Ledger
from ksim.workload.row import Row, follows

#: Among so many requests of one arrival duplicates are looked for.
_COMPARED = 10_000

_arrival = attrgetter("arrival")


@frozen
class LengthLimits:
    """The most tokens of a prompt, and of a prompt with its output; None for no limit."""

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
        """Cut the prompt, and the output only where one token of prompt is not enough."""
        total = row.prompt + row.output if self.max_tokens is None else self.max_tokens
        output = min(row.output, total - 1)
        prompt = min(row.prompt, total - output, self.max_prompt or row.prompt)
        # A chunk that is cut is no longer what its name says.
        whole = len(row.chunks) if prompt == row.prompt else prompt // row.chunk_tokens
        return row._replace(prompt=prompt, output=output, chunks=row.chunks[:whole])


def note_ties(rows: Iterable[Row], ledger: Ledger) -> Iterator[Row]:
    """Yield *rows* and count those that arrive with another, or equal it."""
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
    """Yield *rows* with those of equal arrival moved, in their order, to uniform places in the *step* s after it.

    Turns that wait for others of their session stay with them.
    """
    for arrival, group in groupby(rows, key=_arrival):
        together = list(group)
        places = iter(np.sort(rng.random(len(together))).tolist() if len(together) > 1 else [0.0])
        place, previous = 0.0, None
        for row in together:
            place = place if follows(row, previous) else next(places)
            previous = row
            yield row._replace(arrival=arrival + step * place) if place else row
