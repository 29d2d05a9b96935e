"""The rows of a trace, and the counts of what happens to them."""

from collections.abc import Hashable
from typing import NamedTuple

import attrs

from ksim.flow.images import Image
from ksim.flow.request import Request


class Row(NamedTuple):
    """One request of a trace, as its reader yields it; the fields are those of `ksim.flow.request.Request`.

    `arrival` is in seconds from any origin, and NaN in every row if the format has
    no arrival times.  Lengths may be zero: such rows are dropped and counted later,
    and later the rows are put in order.
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
    adapter: str = ""
    images: tuple[Image, ...] = ()
    acceptance: float | None = None
    max_tokens: int | None = None
    n: int = 1
    prompt_logprobs: int | None = None
    beam_width: int = 0
    outputs: tuple[int, ...] = ()
    aborted: float | None = None


def follows(turn: Row | Request, previous: Row | Request | None) -> bool:
    """Return whether *turn* has no arrival of its own, but waits for *previous*, a turn of its session."""
    return (previous is not None and turn.session != "" and turn.session == previous.session
            and turn.arrival == previous.arrival)


@attrs.define
class Ledger:
    """Counts of a trace's rows, filled while it is read; a row that is dropped is counted under one reason.

    `notes` are remarks on the whole trace.  `zero_outputs` are failed requests,
    `reordered` rows were after a later one, `ties` arrive together with the request
    before them, and `duplicates` are equal to another request of the same arrival.
    Ties and duplicates are kept.
    """

    rows: int = 0
    zero_outputs: int = 0
    zero_prompts: int = 0
    outside_window: int = 0
    overlong: int = 0
    clipped: int = 0
    reordered: int = 0
    ties: int = 0
    duplicates: int = 0
    requests: int = 0
    notes: list[str] = attrs.field(factory=list)

    def counts(self) -> dict[str, int]:
        """Return the counts by name."""
        return attrs.asdict(self, filter=lambda attribute, _: attribute.name != "notes")

    def remarks(self) -> list[str]:
        """Return a remark on each change to the trace; none if it is replayed as it is."""
        counts = self.counts()
        return self.notes + [f"{words}: {counts[name]:,}" for name, words in _REMARKS.items() if counts[name]]


_REMARKS = {
    "zero_outputs": "rows without output tokens (failed requests), dropped",
    "zero_prompts": "rows without prompt tokens, dropped",
    "outside_window": "rows outside the window of time, left out",
    "overlong": "requests over the length limit, dropped",
    "clipped": "requests over the length limit, cut to it",
    "reordered": "rows out of the order of arrival, put in order",
    "ties": "requests with the time stamp of the one before",
    "duplicates": "requests equal to another of the same time stamp",
}
