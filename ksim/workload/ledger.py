"""The account of what became of every row of a trace."""

import attrs


@attrs.define
class Ledger:
    """Counts that fill up while a trace is read; a row that is dropped is counted under one reason.

    `notes` say what holds for the whole trace.  `zero_outputs` are failed
    requests, `reordered` rows stood after a later one, `ties` arrive with the
    request before them, and `duplicates` equal another request of the same
    arrival.  Ties and duplicates are kept.
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
        """Return every count by its name."""
        return attrs.asdict(self, filter=lambda attribute, _: attribute.name != "notes")

    def remarks(self) -> list[str]:
        """Say in words what was not taken over as it stood; an empty list where all was."""
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
