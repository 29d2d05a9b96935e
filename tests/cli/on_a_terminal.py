"""All that commands print on a terminal, at several widths: each command runs once, and is printed once a width.

`played` forks a process on a pseudo-terminal of its own, which it widens as it goes.
"""

import contextvars
import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from attrs import frozen
from rich.cells import cell_len

from tests.cli.command import PARSER

WIDTHS = (80, 100, 120, 160)
#: Between two outputs; no command prints it.
_END = "\x1e"


@frozen
class Output:
    """What a command printed at once at a width.

    *columns* are the cells of a table, column by column; of all else, *texts* are the words that have to be there.
    """

    words: tuple[str, ...]
    width: int
    columns: list[list[str]] | None
    texts: str
    text: str

    @property
    def shown(self) -> Counter[str]:
        """The words on the screen."""
        return Counter(word.removesuffix(":") for word in self.text.split())

    @property
    def hidden(self) -> int:
        """How many columns are said to be hidden."""
        return sum(int(count) for count in re.findall(r"^(\d+) columns? hidden", self.text, re.MULTILINE))

    @property
    def lost(self) -> list[list[str]]:
        """The columns of which some cell is not on the screen."""
        return [column for column in self.columns or [] if not _words(*column) <= self.shown]

    @property
    def too_long(self) -> list[str]:
        """The lines for which the terminal is too narrow."""
        return [line for line in self.text.splitlines() if cell_len(line.rstrip()) > self.width]


def _words(*texts: str) -> Counter[str]:
    return Counter(word.removesuffix(":") for text in texts for word in text.split() if word.strip("─"))


def missing(output: Output) -> Counter[str]:
    """The words of *output* that have to be on the screen, and are not."""
    return _words(*(output.texts.split("\n") if output.columns is None else [cell for column in output.columns
                                                                            for cell in column])) - output.shown


def played(folder, commands):
    """The outputs of *commands*, lists of words, in *folder*; one that fails raises AssertionError."""
    (folder / "commands.json").write_text(json.dumps(commands))
    child, master = pty.fork()
    if not child:
        _play(folder)
    screen = _read(master)
    assert os.waitpid(child, 0)[1] == 0, (folder / "errors.txt").read_text(encoding="utf-8")
    texts = re.sub(r"\x1b\[[0-9;]*m", "", screen.replace("\r\n", "\n")).split(_END)[:-1]
    told = [json.loads(line) for line in (folder / "told.jsonl").read_text(encoding="utf-8").splitlines()]
    return [Output(tuple(each["words"]), each["width"], each["columns"], each["texts"], text.removeprefix("\n"))
            for each, text in zip(told, texts, strict=True)]


def _read(master):
    """All that is written to a terminal until nobody has it open."""
    pieces = []
    with os.fdopen(master, "rb", buffering=0) as screen:
        while True:
            try:
                piece = screen.read(1 << 16)
            except OSError:  # what Linux says where others say that the file ends
                piece = b""
            if not piece:
                return b"".join(pieces).decode()
            pieces.append(piece)


def _play(folder):
    """Be the process on the terminal, which this one has become; it has loaded already what commands need."""
    status = 1
    try:
        with (folder / "errors.txt").open("w", encoding="utf-8") as sys.stderr:
            os.dup2(sys.stderr.fileno(), 2)
            sys.stdin, sys.stdout = (os.fdopen(stream, mode, encoding="utf-8") for stream, mode in enumerate("rw"))
            os.environ |= {"NO_COLOR": "1", "TERM": "xterm"}
            os.chdir(folder)
            _main()
            sys.stdout.flush()
            status = 0
    except BaseException:
        (folder / "errors.txt").write_text(traceback.format_exc(), encoding="utf-8")
    os._exit(status)


def _main():
    with Path("told.jsonl").open("w", encoding="utf-8") as told:
        for words in json.loads(Path("commands.json").read_text(encoding="utf-8")):
            for call in _calls(words):
                for width in WIDTHS:
                    _widen(width)
                    call.play(words, width, told)


def _widen(width):
    fcntl.ioctl(sys.stdout.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))


def _calls(words):
    """What *words* print; the help is laid out by the command itself, at each width anew."""
    if words[-1] == "--help":
        return [_Help()]
    return _recorded(words)


def _recorded(words):
    from unittest import mock

    from rich.console import Console

    calls, quiet = [], mock.Mock()

    def record(console, *renderables, **options):
        if console.file is sys.stdout:
            calls.append(_Call(contextvars.copy_context(), renderables, options))
        else:
            quiet(renderables)

    with mock.patch.object(Console, "print", record):
        _run(words)
    return calls


def _run(words):
    from ksim.cli import app

    sys.argv = ["ksim", *words]
    PARSER(app).main(args=list(words), prog_name="ksim", standalone_mode=False)


class _Help:
    def play(self, words, width, told):
        """Print the help, all of whose words have to be there."""
        from ksim.cli import app

        command: Any = PARSER(app)
        for word in words[:-1]:
            command = command.commands[word]
        texts = [command.help or "", *(getattr(each, "help", "") or "" for each in command.params
                                      if not getattr(each, "hidden", False))]
        _tell(told, words, width, None, "\n".join(texts))
        _run(words)
        _end()


@frozen
class _Call:
    """A call of `Console.print`, which is printed again at any width."""

    context: contextvars.Context
    renderables: tuple
    options: dict

    def play(self, words, width, told):
        """Print it on the terminal as it is now."""
        from ksim.cli.flags import console
        from ksim.views.tables import Table, as_text

        if len(self.renderables) == 1 and isinstance(self.renderables[0], Table):
            table = self.renderables[0]
            columns = [[str(row.cells[place]) for row in table.rows] for place in range(len(table.columns))]
            _tell(told, words, width, columns, "")
        else:
            texts = [str(each) if isinstance(each, str) else as_text(each, 100_000) for each in self.renderables]
            _tell(told, words, width, None, re.sub(r"\[/?(bold|dim|red)?\]", "", "\n".join(texts)))
        self.context.run(lambda: console().print(*self.renderables, **self.options))
        _end()


def _tell(told, words, width, columns, texts):
    told.write(json.dumps({"words": words, "width": width, "columns": columns, "texts": texts}) + "\n")


def _end():
    print(_END, flush=True)
