"""Writers of data sets for benchmark clients: one file for each format that `ksim trace --to` writes.

To add a format, add a file with a class like `DatasetWriter` and name it in ``__all__``; a hyphen in the name that
users write is an underscore in that of the file.  `ksim list datasets` prints the first line of the file's docstring.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Protocol

from ksim.flow.request import Request


class DatasetWriter(Protocol):
    """Writes requests as JSON objects, a line each.

    The law of this contract: the trace reader `reader`, with its `reading` options,
    reads what was written as the same requests.  `times` says whether the format
    "needs" arrival times, "takes" them or has none (""); `fields` are those of a
    `Request` that it has beside its id, times and lengths.  A writer that is an attrs
    class takes its fields as options.
    """

    reader: ClassVar[str]
    reading: ClassVar[dict[str, Any]]
    times: ClassVar[str]
    fields: ClassVar[frozenset[str]]

    @property
    def remarks(self) -> Iterable[str]:
        """Remarks for users of the file."""
        ...

    def rows(self, requests: Iterable[Request], timed: bool) -> Iterator[dict[str, Any]]:
        """Yield the objects of *requests*, in their order; without arrival times unless *timed*."""
        ...
