"""A text as it was pasted: where it comes from, and the folder in which its paths lie."""

from pathlib import Path

from attrs import frozen

from ksim.foundation.errors import DataError
from ksim.foundation.files import is_there

#: No launch line or manifest is longer.
LONGEST = 4 * 2**20


def names_path(argument: str) -> bool:
    """Whether *argument* names a file or a folder that is there."""
    return "\n" not in argument and is_there(Path(argument))


@frozen
class Pasted:
    """A *text*; *source* is the file it was read from, or empty."""

    text: str
    source: str = ""
    folder: Path = Path()

    @classmethod
    def of_argument(cls, argument: str) -> "Pasted":
        """The text of the file that *argument* names, or *argument* itself."""
        return cls.of_file(Path(argument)) if names_path(argument) else cls(argument, folder=Path.cwd())

    @classmethod
    def of_file(cls, path: Path) -> "Pasted":
        """The text of a file; raises DataError for one that is no text."""
        try:
            content = path.read_bytes()[:LONGEST + 1]
        except OSError as error:
            raise DataError(str(path), error.strerror or str(error)) from None
        return cls.of_bytes(content, str(path), path.parent)

    @classmethod
    def of_bytes(cls, content: bytes, source: str, folder: Path) -> "Pasted":
        """The text that *content* is in UTF-8; raises DataError where it is none."""
        if len(content) > LONGEST:
            raise DataError(source, f"is longer than {LONGEST // 2**20} MiB, and no launch line or manifest")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise DataError(source, "is not text in UTF-8") from None
        if "\0" in text:
            raise DataError(source, "is binary, not text")
        return cls(text.replace("\r\n", "\n"), source, folder)

    def at(self, line: int, column: int = 0) -> str:
        """A place in the text, for messages: "serve.sh:3", or "line 3, column 12"."""
        if self.source:
            return f"{self.source}:{line}" + (f":{column}" if column else "")
        return f"line {line}" + (f", column {column}" if column else "")
