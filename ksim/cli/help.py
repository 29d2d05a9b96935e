"""`--help`: the name of each option and, beside or below it, all that it does, in the width of the terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from textwrap import wrap
from typing import Any, TypeVar, cast

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from ksim.cli.terminal import width

F = TypeVar("F", bound=Callable[..., Any])
#: The headings of ksim's commands, in their order.
HEADINGS = ("Run", "Ask", "Compare", "Connect", "Calibrate", "Look up")
#: Lines are not longer than this, nor shorter than that where the terminal is very narrow.
_LONGEST, _SHORTEST = 100, 40
#: Where the texts begin; longer names have a line of their own.
_INDENT = 28


class HelpCommand(TyperCommand):
    """A command with our help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _show(self, ctx)


class HelpGroup(TyperGroup):
    """Several commands with our help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, with a line for each command."""
        _show(self, ctx)


class App(typer.Typer):
    """An application whose commands have our help."""

    def __init__(self, **options: Any):
        super().__init__(**{"cls": HelpGroup, **options})

    def command(self, name: str | None = None, *, cls: type[TyperCommand] | None = HelpCommand,
                **options: Any) -> Callable[[F], F]:
        """Add a command, as typer does."""
        return super().command(name, cls=cls, **options)


def under_old_name(old: str, new: str, command: F) -> F:
    """*command* for its *old* name, which says on standard error that it is called *new* now."""
    @wraps(command)
    def warned(**values: Any) -> Any:
        print(f"ksim: `ksim {old}` is called `ksim {new}` now; the old name goes with the next release",
              file=sys.stderr)
        return command(**values)

    return cast(F, warned)


def _show(command: Any, ctx: Any) -> None:
    screen = Console(width=width(sys.stdout))
    columns = max(_SHORTEST, min(_LONGEST, screen.width))
    screen.print(Text(f"\n{command.get_usage(ctx)}\n", style="bold"), soft_wrap=True)
    for paragraph in (command.help or "").split("\n\n"):
        screen.print("\n".join(wrap(paragraph, columns)) + "\n", markup=False, highlight=False, soft_wrap=True)
    for title, rows in _panels(command, ctx).items():
        screen.print(Text(f"{title}:", style="bold"))
        for line in _lines(rows, columns):
            screen.print(line, soft_wrap=True)
        screen.print()


def _panels(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Names and texts of arguments, options and commands, by the titles of their groups."""
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for each in command.get_params(ctx):
        usual = "Options" if each.param_type_name == "option" else "Arguments"
        if record := each.get_help_record(ctx):
            panels.setdefault(_heading(each, usual), []).append(record)
    panels.update({heading: [] for heading in HEADINGS})
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            panels.setdefault(_heading(inner, "Commands"), []).append((name, _first_paragraph(inner)))
    return {title: rows for title, rows in panels.items() if rows}


def _heading(member: Any, usual: str) -> str:
    """The heading of a parameter or of a command that stands under *usual* by default."""
    heading = getattr(member, "rich_help_panel", None)
    return heading if isinstance(heading, str) and heading else usual


def _first_paragraph(command: Any) -> str:
    return " ".join((command.help or "").partition("\n\n")[0].split())


def _lines(rows: Iterable[tuple[str, str]], columns: int) -> Iterator[Text]:
    """Each name, and the words of its text in a column of their own; no word is broken."""
    for name, text in rows:
        fits = len(name) <= _INDENT - 4
        for line in [] if fits else wrap(name if len(name) < columns - 2 else name.replace("|", " | "), columns - 2,
                                         break_long_words=False, break_on_hyphens=False):
            yield Text(f"  {line}", style="cyan")
        for number, line in enumerate(wrap(text, columns - _INDENT, break_long_words=False, break_on_hyphens=False)):
            yield Text.assemble((f"  {name if fits and not number else ''}".ljust(_INDENT), "cyan"), line)
