"""Trace readers: one file for each format of recorded requests.

To add a format, add a file with a class like `TraceReader` and name it in ``__all__``.  A reader outside ksim is named
``"package.module:Class"`` in a scenario.  `ksim.workload.rows` and `jsonl` hold checked building blocks.
`ksim list traces` prints the first line of the file's docstring.
"""

from collections.abc import Iterator
from typing import ClassVar, Protocol

from ksim.workload.lines import Lines
from ksim.workload.rows import Row

#: Formats of JSON alone: their readers are neither loaded nor asked about a file that begins otherwise.
JSON = frozenset({"aibrix", "bailian", "mooncake", "otel", "prometheus", "ragpulse", "sharegpt", "vllm_custom", "weka"})


class TraceReader(Protocol):
    """Reads one format.

    `example` is a small file of the format, with which the laws of this contract
    are tested: arrivals are in order, lengths are positive, no other reader claims
    the file, and reading it twice gives the same rows.

    The other attributes are optional.  `beside` has the files that the example
    needs in its folder, by name.  `time_unit` is the unit of the format's times: one
    of `ksim.workload.rows.UNITS` ("s" by default), "dates", or "" if it has none.
    `empty` is "skip" (the default) if the format marks failed requests with zero
    tokens, and "error" if it does not.  `remark` is printed with every result.  A
    reader that is an attrs class takes its fields as options,
    ``format = {name = "sharegpt", turns = 1}``, and the run's seed if it has a field
    `seed`.
    """

    example: ClassVar[str]

    def recognises(self, first: str) -> bool:
        """Return whether a file that begins with *first* is in this format.

        *first* is its first line, or the first lines of a JSON document over many lines.
        """
        ...

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        """Yield the rows in the order of the file; raise `lines.error(...)` for a row that cannot be used.

        *chunk_tokens* replaces the format's own number of tokens per block id.
        """
        ...
