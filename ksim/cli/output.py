"""Where the command line writes: tables and text on the screen, and JSON (docs/json.md).

Every command that prints a table takes `--json FILE` and `--wide`.  After `--json -`, standard output has the JSON
alone: tables are not printed, and what else is said goes to standard error.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.text import Text

from ksim.cli.terminal import moves, width
from ksim.foundation.errors import ConfigError
from ksim.report.tables import REMEDY, WIDE
from ksim.report.wording import UNLIMITED

#: The file name that stands for standard output.
STDOUT = Path("-")
#: Standard output itself, while it is kept for JSON.
_KEPT: ContextVar[TextIO | None] = ContextVar("standard output", default=None)


@contextmanager
def _kept_for_json() -> Iterator[None]:
    """Keep standard output for JSON: what is printed meanwhile goes to standard error."""
    token = _KEPT.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _KEPT.reset(token)


def _claim(context: typer.Context, path: Path | None) -> Path | None:
    """Refuse a folder before anything is run, and keep standard output for JSON if it goes there."""
    if path is not None and not context.resilient_parsing:
        if path == STDOUT:
            context.with_resource(_kept_for_json())
        elif path.is_dir():
            raise ConfigError("--json", f"{path}: cannot be written: it is a directory; name a file in it, or - for"
                                        f" standard output")
    return path


def _check(context: typer.Context, path: Path | None) -> Path | None:
    """Do as `_claim`, and refuse a file in a folder that there is not, or that nobody may write to."""
    path = _claim(context, path)
    if path is not None and not context.resilient_parsing and path != STDOUT:
        folder = path.resolve().parent
        problem = "No such file or directory" if not folder.is_dir() else (
            "" if os.access(folder, os.W_OK) else "Permission denied")
        if problem:
            raise ConfigError("--json", f"{path}: cannot be written: {problem}; name a file in a directory that may be"
                                        f" written to, or - for standard output")
    return path


def _option(check: Callable[[typer.Context, Path | None], Path | None]) -> Any:
    return typer.Option("--json", metavar="FILE", callback=check, help="write the outcome as JSON to this file, or to"
                                                                       " standard output for - (docs/json.md)")


#: The option that every command with a table has.
JsonFile = Annotated[Path | None, _option(_check)]
#: The same for commands that make the file's folder.
JsonInFolder = Annotated[Path | None, _option(_claim)]


@contextmanager
def _showing(wide: bool, remedy: str) -> Iterator[None]:
    """Show all columns where that is asked for or nothing limits a line, else say below tables which options do."""
    tokens = WIDE.set(wide or width(sys.stdout) == UNLIMITED), REMEDY.set(remedy)
    try:
        yield
    finally:
        WIDE.reset(tokens[0])
        REMEDY.reset(tokens[1])


def _widen(context: typer.Context, wide: bool) -> bool:
    if not context.resilient_parsing:
        known = {name for option in context.command.params for name in option.opts}
        context.with_resource(_showing(wide, ", ".join(name for name in ("--wide", "--json") if name in known)))
    return wide


#: The other option that every command with a table has.
Wide = Annotated[bool, typer.Option("--wide", callback=_widen, help="print all columns of tables, also those for which"
                                                                    " the terminal has no room")]


def console() -> Console:
    """Standard output: as wide as the terminal, or without a limit where there is none."""
    return Console(width=_width(), quiet=_KEPT.get() is not None)


def report_console() -> Console:
    """Standard output for reports, whose texts are as narrow as a page where there is no terminal."""
    return Console(quiet=_KEPT.get() is not None)


def say(*lines: str) -> None:
    """Print *lines*, folded at words where the terminal ends; after `--json -`, on standard error."""
    screen = Console(width=_width())
    for line in lines:
        screen.print(Text(line))


def _width() -> int | None:
    return UNLIMITED if WIDE.get() else width(sys.stdout)


class _Silent:
    """A status line where nobody looks."""

    def update(self, status: str) -> None:
        """Show nothing."""


@contextmanager
def status(text: str) -> Iterator[Any]:
    """A line on standard error that says what is being done, with an `update`; nothing where there is no terminal."""
    shown = Console(stderr=True).status(text) if moves(sys.stderr) else nullcontext(_Silent())
    with shown as line:
        yield line


def as_json(content: Mapping[str, Any]) -> str:
    """*content* as JSON, which has no NaN and no infinity: they are null."""
    return json.dumps(_plain(content), indent=2, allow_nan=False) + "\n"


def write_json(path: Path | None, content: Mapping[str, Any], *, make_folder: bool = False) -> None:
    """Write *content* to *path*, if one is given; raises ConfigError where that is not possible."""
    if path is None:
        return
    if path == STDOUT:
        (_KEPT.get() or sys.stdout).write(as_json(content))
        return
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(as_json(content), encoding="utf-8")
    except OSError as error:
        raise ConfigError("--json", f"{path}: cannot be written: {error.strerror or error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    return value.tolist() if type(value).__module__ == "numpy" else value
