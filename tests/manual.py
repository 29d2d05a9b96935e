"""What the pages of the manual show: commands, Python and files, in their order."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```|^    (ksim [a-z](?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE | re.DOTALL)


@frozen
class Shown:
    """Something that a page shows; *kind* is "command", "file" or "code"."""

    kind: str
    text: str
    name: str = ""


def shown(page: Path) -> Iterator[Shown]:
    """What *page* shows.  A block that begins with a file's name in a remark is that file."""
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        language, code, command = block.groups()
        if command:
            yield Shown("command", without_remark(command))
        elif file := re.match(r"# ([\w-]+\.(?:py|toml|yaml))\n", code):
            yield Shown("file", code, file[1])
        elif language == "python":
            yield Shown("code", code)


def without_remark(command: str) -> str:
    """*command* on one line, without what is said behind it."""
    return re.split(r"  | # ", re.sub(r"\\\n\s*", "", command))[0].strip()


def words(command: str) -> list[str]:
    """Those after `ksim`, of the first program where there is a pipe."""
    split = shlex.split(command)
    return split[1:split.index("|") if "|" in split else None]
