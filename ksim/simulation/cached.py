"""What is kept of runs for those to come: which files of prices there are, and how to be rid of them."""

from pathlib import Path

from attrs import frozen

from ksim.cost.remembering import book
from ksim.foundation import folders
from ksim.foundation.errors import DataError

__all__ = ["Prices", "clear", "folder", "prices"]

#: The folder, or None where nothing is kept.
folder = folders.cache


@frozen
class Prices:
    """A file of prices: its bytes, the time it was last used (s since 1970), and its rows, None if broken."""

    path: Path
    size: int
    used: float
    rows: int | None


def prices(where: Path) -> list[Prices]:
    """The files of prices in *where*, the last used first."""
    return [Prices(path, path.stat().st_size, path.stat().st_mtime, book.rows_of(path)) for path in book.files(where)]


def clear(where: Path) -> int:
    """Remove the files of prices in *where* and say how many bytes they had; raises DataError where one cannot be."""
    try:
        return book.clear(where)
    except OSError as error:
        raise DataError(str(where), error.strerror or str(error)) from None
