"""What the terminal can show: colours, moving lines and a width, by the usual environment variables.

What to try where the command line itself cannot be read.
"""

import os
import re
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from ksim.views.wording import UNLIMITED

#: The terminals, by TERM, that can neither colour nor move.
DUMB = ("dumb", "unknown")
_LONG_WORD = re.compile(r"\S{400,}")


def settle(environment: MutableMapping[str, str]) -> None:
    """Make NO_COLOR and FORCE_COLOR of *environment*, which Rich knows, say what its other variables say as well.

    NO_COLOR and TERM=dumb come first, then FORCE_COLOR (0 is no), CLICOLOR_FORCE, and CLICOLOR=0.  Without any of them
    colours are for terminals alone.
    """
    coloured = wants_colour(environment)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)
    if coloured is not None:
        environment["FORCE_COLOR" if coloured else "NO_COLOR"] = "1"


def wants_colour(environment: MutableMapping[str, str]) -> bool | None:
    """Whether *environment* asks for colours or for none; None leaves it to the terminal."""
    if environment.get("NO_COLOR") or environment.get("TERM") in DUMB:
        return False
    if forced := environment.get("FORCE_COLOR"):
        return forced.lower() not in ("0", "false", "no")
    if environment.get("CLICOLOR_FORCE", "") not in ("", "0"):
        return True
    return False if environment.get("CLICOLOR") == "0" else None


def moves(stream: TextIO) -> bool:
    """Whether lines on *stream* can be written over: a terminal that is not dumb."""
    return stream.isatty() and os.environ.get("TERM") not in DUMB


def width(stream: TextIO) -> int | None:
    """The columns of *stream*: COLUMNS, or those of the terminal, which Rich asks (None); a file has no limit."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    return None if stream.isatty() else UNLIMITED


def never_fails(*streams: TextIO) -> None:
    """Have *streams* replace what their encoding lacks, where it would otherwise be an error."""
    for stream in streams:
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")


def shortened(text: str) -> str:
    """*text* with the middle left out of words that are longer than any name or path."""
    return _LONG_WORD.sub(lambda found: f"{found[0][:60]}...{found[0][-20:]}", text)


@contextmanager
def flushed() -> Iterator[None]:
    """Write what was printed by the end of the block, where an error can still be told; Python would at its exit."""
    try:
        yield
    finally:
        sys.stdout.flush()


def forget() -> None:
    """Have what cannot be printed any more go nowhere, or Python would complain at its exit."""
    with suppress(OSError, ValueError):  # ValueError: a stream in memory has no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """Open the standard streams that were closed (``<&-``) on nothing; files would get their numbers otherwise."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for the whole process


def prepare() -> None:
    """Prepare this process's environment and streams for output."""
    _open_streams()
    settle(os.environ)
    never_fails(sys.stdout, sys.stderr)


#: What other programs call our commands.
_ALSO = {"simulate": "run", "sim": "run", "start": "run", "benchmark": "serve", "bench": "serve", "compare": "diff",
         "models": "list models", "gpus": "list gpus", "optimize": "tune", "optimise": "tune",
         "help": "--help", "version": "--version", "check": "doctor", "create": "new", "validate-trace": "trace",
         "fit": "model", "convert": "trace"}


def hint(app: Any, words: Sequence[str]) -> str:
    """What to try in place of ``ksim`` *words*, which could not be read; "" where nobody knows."""
    import typer

    first = words[0] if words else ""
    command: Any = typer.main.get_command(app)
    known = getattr(command, "commands", {})
    if first and not first.startswith("-") and first not in known:
        return _of_command(first)
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return next(_of_options(words, options), "")


def _of_command(word: str) -> str:
    if word in _ALSO:
        return f"try: ksim {_ALSO[word]}"
    if Path(word).suffix.lower() == ".toml":
        return f"to run a scenario: ksim run {word}"
    if Path(word).is_file():
        return f"to see what a trace contains: ksim trace {word}"
    return "`ksim --help` lists the commands"


def _of_options(words: Sequence[str], options: set[str]) -> Iterator[str]:
    for word in words:
        name = word.partition("=")[0].lstrip("-\u2013\u2014")
        if word.startswith(("\u2013", "\u2014")) and f"--{name}" in options:
            yield f"write two plain dashes: --{name}"
        if word.startswith("-") and not word.startswith("--") and f"--{name}" in options and word not in options:
            yield f"options have two dashes: --{name}"
        if word.startswith("--") and "_" in name and f"--{name.replace('_', '-')}" in options:
            yield f"options have dashes, not underscores: --{name.replace('_', '-')}"
