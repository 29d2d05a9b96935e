"""A row of a trace, as its reader found it."""

from collections.abc import Hashable
from typing import NamedTuple

from ksim.flow.request import Request


class Row(NamedTuple):
    """One request of a trace; the fields mean what they mean in `ksim.flow.request.Request`.

    `arrival` is in seconds from any origin, and the lengths may be zero: what
    follows the reader drops such rows, orders the others and counts what it did.
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
