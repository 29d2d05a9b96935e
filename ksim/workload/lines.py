"""The lines of a text file, with line numbers for messages."""

import io
import json
import re
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from ksim.foundation.errors import DataError
from ksim.foundation.files import Unpacked, regular_file

_GZIP = b"\x1f\x8b"
#: The most lines of a JSON document by which its format is recognised.
_BEGINNING = 200
#: Bytes that are read at once, and the most of a line, or of an object in a list that stands on one line.
_PIECE, LONGEST_LINE = 2**20, 64 * 2**20
#: Keys of an object that holds nothing but the list of rows, its beginning, and what may become one with the next line.
_LISTS = r'"(?:data|requests|rows)"'
_WRAPPED, _OPEN = re.compile(rf"\{{\s*{_LISTS}\s*:\s*\["), re.compile(rf"\{{(?:\s*{_LISTS}(?:\s*:)?)?")
#: So many empty lines in a row are no trace.
_MOST_BLANK = 100_000
#: What matters for where an object ends: texts, also one that is cut, and braces.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|(\\?\Z))|[{}]', re.DOTALL)
#: Files of a folder that may be read as one trace.
_PARTS = (".json", ".jsonl", ".json.gz", ".jsonl.gz")


class Lines:
    """The lines of a UTF-8 file, plain or gzipped; `number` is that of the last line read.

    `per_second` is the number of the file's units of time in a second; 0 means the
    unit of its format.  `least_tokens` is 1 if a request without tokens is an error.
    The checks in `ksim.workload.rows` use both.  `dates` becomes true once
    arrivals were read as dates, and `decimal_comma` says whether 1,5 may be a number.
    An object that holds one list, ``{"data": [...]}``, is read as that list.
    """

    def __init__(self, path: Path, per_second: float = 0.0, least_tokens: int = 0):
        self.path = path
        self.number = 0
        self.per_second = per_second
        self.least_tokens = least_tokens
        self.dates = False
        self.decimal_comma = False

    def parts(self) -> "list[Lines]":
        """Return the lines of each file, by name, where the path is a folder; else these."""
        if not self.path.is_dir():
            return [self]
        return [Lines(file, self.per_second, self.least_tokens) for file in sorted(self.path.iterdir())
                if file.name.endswith(_PARTS) and not file.name.startswith(".")]

    def __iter__(self) -> Iterator[str]:
        """Yield every line that is not blank, without its line end and byte-order mark.

        Raises DataError for a file that is missing, cut short or not text.
        """
        texts = self._texts()
        first = next(texts, None)
        while first is not None and _OPEN.fullmatch(first) and (more := next(texts, None)) is not None:
            first = f"{first} {more}"
        if first is None:
            return
        if not _WRAPPED.match(first) or _has_other_keys(first):
            yield first
            yield from texts
        else:
            yield from self._unwrapped(first, texts)

    def mention(self, text: str) -> bool:
        """Return whether *text*, of ASCII, is anywhere in the file; raise DataError for one that cannot be read."""
        encoded, held = text.encode(), b""
        try:
            with self._open() as file:
                while piece := file.read(_PIECE):
                    held += piece
                    if encoded in held:
                        return True
                    held = held[max(0, len(held) - len(encoded)):]
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise self.error(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
        return False

    def _unwrapped(self, first: str, texts: Iterator[str]) -> Iterator[str]:
        """Yield the list in an object that holds nothing else."""
        held = first[first.index("["):]
        for text in texts:
            yield held
            held = text
        if not held.endswith("}"):
            raise self.error("ends inside the list of rows; is the file cut short?")
        if held := held[:-1].rstrip():
            yield held

    def _texts(self) -> Iterator[str]:
        """Yield the lines of the file."""
        self.number = blank = 0
        try:
            with self._open() as file:
                for raw in iter(partial(file.readline, _PIECE), b""):
                    self.number += 1
                    blank = blank + 1 if len(raw) < 2 else 0
                    if blank > _MOST_BLANK:
                        raise self.error(f"has {_MOST_BLANK:,} empty lines before it, as no trace has")
                    for part in (raw,) if len(raw) < _PIECE or raw.endswith(b"\n") else self._long(raw, file):
                        if text := self._text(part):
                            yield text
        except (OSError, EOFError, zlib.error, ValueError) as error:  # ValueError: an impossible file name
            reason = getattr(error, "strerror", None) or error
            raise self.error(f"cannot be read: {reason}") from None

    def _long(self, raw: bytes, file: BinaryIO) -> Iterator[bytes]:
        """Yield the line that begins with *raw*: whole, or, if it is a list, some objects of it at a time.

        Raises DataError where that is more than `LONGEST_LINE`.
        """
        splits, held, place, depth = raw.lstrip(b"\xef\xbb\xbf \t").startswith(b"["), bytearray(raw), 0, 0
        while not held.endswith(b"\n") and (more := file.readline(_PIECE)):
            cut = 0
            for token in _TOKEN.finditer(held, place) if splits else ():
                if token[1] is not None:
                    break
                place = token.end()
                depth += {b"{": 1, b"}": -1}.get(token[0], 0)
                cut = place if token[0] == b"}" and depth == 0 else cut
            if cut:
                yield bytes(held[:cut])
                del held[:cut]
                place -= cut
            held += more
            if len(held) > LONGEST_LINE:
                raise self.error(f"has {'an object' if splits else 'a line'} of more than {LONGEST_LINE // 2**20} MiB,"
                                 f" which is the most; write a request a line (jq -c '.[]' makes such lines of a list)")
        yield bytes(held)

    def first(self) -> str:
        """Return the first line; raise DataError for an empty file."""
        for line in self:
            return line
        raise DataError(str(self.path), "is empty; a trace has at least one request")

    def beginning(self) -> str:
        """Return the first line; if it begins a JSON document of several lines, the first lines.

        Raises DataError for an empty file.
        """
        first = self.first()
        whole = first[0] not in "[{" or (first[-1] in "]}" and len(first) > 1)
        return first if whole else "\n".join(islice(self, _BEGINNING))

    def error(self, problem: str) -> DataError:
        """Return an error about the last line read."""
        return DataError(f"{self.path}:{self.number}" if self.number else str(self.path), problem)

    def _open(self) -> BinaryIO:
        """Open the file at its start; it is read more than once."""
        with regular_file(self.path).open("rb") as file:
            packed = file.read(2) == _GZIP
        return io.BufferedReader(Unpacked(self.path), _PIECE) if packed else self.path.open("rb")

    def _text(self, raw: bytes) -> str:
        first = self.number == 1
        try:
            text = raw.decode("utf-8-sig" if first else "utf-8").strip()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise self.error("is not text; expected CSV or JSON in UTF-8, or gzip of it")
        return text


def _has_other_keys(line: str) -> bool:
    """Whether *line* is a whole object with more than one key, such as a row with a list of its own."""
    try:
        return len(json.loads(line)) > 1
    except (ValueError, RecursionError):
        return False
