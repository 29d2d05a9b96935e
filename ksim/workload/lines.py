"""The lines of a text file, with their numbers for messages."""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from ksim.foundation.errors import DataError

_GZIP = b"\x1f\x8b"


class Lines:
    """The lines of a UTF-8 file, plain or gzip by its content; `number` is the line read last."""

    def __init__(self, path: Path):
        self.path = path
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        """Yield every line that is not blank, bare of line end and byte-order mark.

        Raises DataError for a file that is missing, cut short or not text.
        """
        self.number = 0
        try:
            with self._open() as file:
                for raw in file:
                    self.number += 1
                    if text := self._text(raw):
                        yield text
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise self.error(f"cannot be read: {reason}") from None

    def first(self) -> str:
        """Return the first line; raise DataError for an empty file."""
        for line in self:
            return line
        raise DataError(str(self.path), "is empty; a trace has at least one request")

    def error(self, problem: str) -> DataError:
        """Return the error that says *problem* of the line read last."""
        return DataError(f"{self.path}:{self.number}" if self.number else str(self.path), problem)

    def _open(self) -> BinaryIO:
        with self.path.open("rb") as file:
            packed = file.read(2) == _GZIP
        return cast(BinaryIO, io.BufferedReader(gzip.GzipFile(self.path))) if packed else self.path.open("rb")

    def _text(self, raw: bytes) -> str:
        first = self.number == 1
        try:
            text = raw.decode("utf-8-sig" if first else "utf-8").strip()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise self.error("is not text; expected CSV or JSON lines in UTF-8, or gzip of it")
        return text
