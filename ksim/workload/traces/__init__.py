"""Trace readers: one file for each format of recorded requests.

To add one, add a file with a class like `TraceReader` and name it in
``__all__``.  From outside ksim, a scenario names it ``"package.module:Class"``.
`ksim.workload.fields`, `columns`, `jsonl` and `dates` hold checked building blocks.
The first line of the file's docstring is what `ksim list traces` says of the format.
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

    The rest may be left out.  `beside` are files that the example needs in its
    folder, by name.  `time_unit` is the unit of the format's times, of
    `ksim.workload.fields.UNITS` ("s" if left out), "dates", or empty where it has
    no times.  `empty` is "skip" where the format marks failed requests with zero
    tokens, which is the case if it is left out, and "error" where it does not.
    `remark` is printed with every result.  A reader that is an attrs class takes
    its fields as options, ``format = {name = "sharegpt", turns = 1}``, and the
    run's seed if it has a field `seed`.
    """

    example: ClassVar[str]

    def recognises(self, first: str) -> bool:
        """Say whether a file is of this format that begins with *first*.

        That is its first line, or, of a JSON document over many lines, the first of them.
        """
        ...

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        """Yield the rows as they stand in the file; raise `lines.error(...)` for one that cannot be used.

        *chunk_tokens* replaces the format's own number of tokens to a block id.
        """
        ...
