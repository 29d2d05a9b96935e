"""What to try where the command line itself cannot be read."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

#: What other programs call our commands.
_ALSO = {"simulate": "run", "sim": "run", "start": "run", "benchmark": "serve", "bench": "serve", "compare": "diff",
         "models": "list models", "gpus": "list gpus", "optimize": "tune", "optimise": "tune", "plan": "capacity",
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
