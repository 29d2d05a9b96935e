"""A file of rows by key that many processes read and write at once, and that is thrown away where it is broken."""

import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from attrs import define, field

__all__ = ["ENDING", "Book", "clear", "files", "rows_of"]

T = TypeVar("T")

#: Bytes of a file after which it is begun anew (about half a million prices), and files that are kept, the last used.
MOST, FILES = 64 * 2**20, 8
#: Seconds to wait for others who write.
PATIENCE = 5.0
#: Keys asked for in one question, at most.
TOGETHER = 500
ENDING = ".prices"
_BROKEN = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT,
           sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_INTERNAL, sqlite3.SQLITE_CONSTRAINT,
           sqlite3.SQLITE_SCHEMA}
_TABLE = "CREATE TABLE IF NOT EXISTS prices (key BLOB PRIMARY KEY NOT NULL, row BLOB NOT NULL) WITHOUT ROWID"


@define(eq=False)
class Book:
    """The file at `path`; rows are asked for and written many at a time, and nothing is read before.

    A file that is broken, or has another layout, is begun anew.  Where it cannot be used at all, `problem` says why,
    and it has no rows from then on.
    """

    path: Path
    problem: str = field(default="", init=False)
    _connection: sqlite3.Connection | None = field(default=None, init=False, repr=False)
    _empty: bool = field(default=False, init=False)

    def rows(self, keys: Sequence[bytes]) -> dict[bytes, object]:
        """What stands under those of *keys* that there are; it may not be what was written."""
        found: dict[bytes, object] = {}
        for first in range(0, len(keys), TOGETHER):
            found.update(self._do(partial(self._select, keys=keys[first:first + TOGETHER])) or ())
        return found

    def _select(self, connection: sqlite3.Connection, keys: Sequence[bytes]) -> list[tuple[bytes, object]]:
        if self._empty:  # as the first run of all finds it, which need not ask again
            return []
        marks = ",".join("?" * len(keys))
        return connection.execute(f"SELECT key, row FROM prices WHERE key IN ({marks})", keys).fetchall()

    def write(self, rows: Mapping[bytes, bytes]) -> None:
        """Add *rows*, all or none of them, in the place of what stands under their keys."""
        def written(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            with connection:  # all, or if interrupted, none
                connection.executemany("INSERT OR REPLACE INTO prices (key, row) VALUES (?, ?)", sorted(rows.items()))
            self._empty = False

        if rows and not self.problem:
            with suppress(OSError):
                if self.path.stat().st_size > MOST:
                    self._discard()
            self._do(written)

    def close(self) -> None:
        """Let go of the file; it is opened again when it is asked for something."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Do *work* on the file, or on a new one where that is broken; None where it cannot be done."""
        for _ in range(2):
            if self.problem:
                break
            try:
                return work(self._opened())
            except (sqlite3.Error, OSError, OverflowError, UnicodeDecodeError) as error:
                self.close()
                self._mend(error)
        return None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            new = not self.path.exists()
            if new:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                _forget(self.path.parent)
            self._connection = sqlite3.connect(self.path, PATIENCE, isolation_level=None, check_same_thread=False)
            # A power cut may break the file, which is no loss; a process that is killed cannot.
            self._connection.execute("PRAGMA synchronous = OFF")
            self._connection.execute(f"PRAGMA cache_size = {-MOST // 1024}")  # all pages that were read, in KiB
            self._connection.execute(_TABLE)
            self._empty = self._connection.execute("SELECT 1 FROM prices LIMIT 1").fetchone() is None
            with suppress(OSError):
                os.utime(self.path)  # was used
        return self._connection

    def _mend(self, error: Exception) -> None:
        """Throw a broken file away; give up for any other *error*."""
        if self._damaged(error):
            self._discard()
        else:
            self.problem = f"prices are not kept in {self.path}: {error}"

    def _damaged(self, error: Exception) -> bool:
        """Whether *error* comes from bytes that are not what SQLite wrote."""
        if not isinstance(error, sqlite3.Error):
            return isinstance(error, UnicodeDecodeError)  # a message of SQLite's that quotes a damaged name
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_INTERNAL) & 0xFF
        # A damaged header says that the file is read-only, even where the file system lets us write it.
        return code in _BROKEN or (code == sqlite3.SQLITE_READONLY
                                   and os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK))

    def _discard(self) -> None:
        self.close()
        try:
            _remove(self.path)
        except OSError as error:
            self.problem = f"prices are not kept in {self.path}: {error}"


def files(folder: Path) -> list[Path]:
    """The files of rows in *folder*, the last used first."""
    found = []
    with suppress(OSError):
        found = [(path.stat().st_mtime, path) for path in folder.glob(f"*{ENDING}")]
    return [path for _, path in sorted(found, reverse=True)]


def rows_of(path: Path) -> int | None:
    """How many rows the file at *path* has; None where it is broken."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", PATIENCE, uri=True)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM prices").fetchone()
            return int(count)
    except (sqlite3.Error, UnicodeDecodeError):
        return None


def clear(folder: Path) -> int:
    """Remove the files of rows in *folder* and say how many bytes they had; raises OSError where one cannot be."""
    found = files(folder)
    size = sum(path.stat().st_size for path in found)
    for path in found:
        _remove(path)
    return size


def _forget(folder: Path) -> None:
    """Remove the files in *folder* that were not used for longest, where another is to come."""
    for path in files(folder)[FILES - 1:]:
        with suppress(OSError):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a file, and what a process that was killed left beside it, which would be taken for the next one's."""
    path.with_name(path.name + "-journal").unlink(missing_ok=True)
    path.unlink(missing_ok=True)
