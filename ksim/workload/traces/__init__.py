"""Trace readers: one file for each format of recorded requests.

To add one, add a file with a class like `TraceReader` and name it in
``__all__``.  From outside ksim, a scenario names it ``"package.module:Class"``.
`ksim.workload.fields`, `columns` and `jsonl` hold checked building blocks.
"""

from collections.abc import Iterator
from typing import ClassVar, Protocol

from ksim.workload.lines import Lines
from ksim.workload.row import Row


class TraceReader(Protocol):
    """Reads one format.

    `example` is a small file of the format, with which the laws of this
    contract are tested: arrivals come out ordered, lengths positive, no other
    reader claims the file, and reading twice gives the same.
    """

    example: ClassVar[str]

    def recognises(self, first: str) -> bool:
        """Say whether a file with *first* as its first line is of this format."""
        ...

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        """Yield the rows as they stand in the file; raise `lines.error(...)` for one that cannot be used.

        *chunk_tokens* replaces the format's own number of tokens to a block id.
        """
        ...
