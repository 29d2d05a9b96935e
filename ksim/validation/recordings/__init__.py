"""Readers of benchmark results: one file for each client, named after it.

To add a client, add a file with a class like `RecordingReader` and name it in ``__all__``.  `ksim list recordings`
prints the first line of the file's docstring.  `ksim.validation.benchmarks.files` holds checked access to what a file
says.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from ksim.validation.benchmarks.files import PlacedTable
from ksim.validation.benchmarks.recorded import Recorded


class RecordingReader(Protocol):
    """Reads the results of one client.

    `example` is a small result, with which the laws of this contract are tested: no
    other reader claims it, and its runs have figures.
    """

    example: ClassVar[str]

    def recognises(self, first: PlacedTable) -> bool:
        """Return whether a file whose first table is *first* is of this client."""
        ...

    def runs(self, path: Path, tables: Sequence[PlacedTable]) -> Iterator[Recorded]:
        """Yield the runs that the *tables* of the file at *path* describe; raise `Table.error` for what cannot be."""
        ...
