"""A row of a trace, as its reader found it."""

from collections.abc import Hashable
from typing import NamedTuple

from ksim.flow.request import Request


class Row(NamedTuple):
    """One request of a trace; the fields mean what they mean in `ksim.flow.request.Request`.

    `arrival` is in seconds from any origin, in every row NaN where the format
    has no arrival times.  The lengths may be zero: such rows are dropped after
    the reader, the others ordered, and both are counted.
    """

    arrival: float
    prompt: int
    output: int
    chunks: tuple[Hashable, ...] = ()
    chunk_tokens: int = 16
    priority: int = 0
    session: str = ""
    delay: float = 0.0
    tenant: str = ""


def follows(turn: Row | Request, previous: Row | Request | None) -> bool:
    """Say whether *turn* has no arrival of its own but waits for *previous*, a turn of its session."""
    return (previous is not None and turn.session != "" and turn.session == previous.session
            and turn.arrival == previous.arrival)
