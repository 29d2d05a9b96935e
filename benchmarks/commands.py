"""docs/cli.md: every command with its arguments and options, from the code; `python -m benchmarks.reference` writes it.
"""

import inspect
import types
from collections import Counter
from collections.abc import Collection, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import attrs
import typer

from ksim.cli import app
from ksim.cli.flags import SERVE_PANEL
from ksim.cli.help import HEADINGS

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
_TYPES = {str: "text", int: "integer", float: "number", Path: "path", bool: ""}
_HEAD = ("| Option | Value | Default | Meaning |", "|---|---|---|---|")
#: Rows that so many commands have are shown once for all of them.
_OFTEN = 4


@attrs.frozen
class Command:
    """A command: the words that name it, what Typer makes of it, its function, and its heading in the help."""

    words: str
    parsed: Any
    function: Any
    heading: str

    @property
    def own(self) -> list[Any]:
        """Its arguments and options but for engine settings, which many commands share."""
        return [each for each in self.parsed.params if not _is_setting(each) and not _is_hidden(each)]

    @property
    def settings(self) -> list[Any]:
        return [each for each in self.parsed.params if _is_setting(each)]


def lines() -> list[str]:
    """What docs/cli.md has between its marks."""
    every = sorted(_commands(app, "ksim"), key=lambda command: HEADINGS.index(command.heading))
    counts = Counter(_row(command, each) for command in every for each in command.own)
    shared = {row for row, count in counts.items() if count >= _OFTEN and row.startswith("| `-")}
    return [*_contents(every), *(line for command in every for line in _section(command, shared)),
            "## Shared options", "", *_HEAD, *sorted(shared, key=_by_name), "", *_settings(every)]


def _by_name(row: str) -> str:
    """The long name of an option, by its row."""
    return row.partition("`--")[2]


def _commands(group: typer.Typer, words: str) -> Iterator[Command]:
    """Those of *group*, in the order of the help."""
    parsed: Any = typer.main.get_command(group)
    for info in (info for info in group.registered_commands if not info.hidden):
        name = info.name or typer.main.get_command_name(info.callback.__name__ if info.callback else "")
        yield Command(f"{words} {name}", parsed.commands[name], info.callback, str(info.rich_help_panel))
    for inner in group.registered_groups:
        for command in _commands(inner.typer_instance, f"{words} {inner.name}") if inner.typer_instance else ():
            yield attrs.evolve(command, heading=str(inner.rich_help_panel))


def _contents(every: list[Command]) -> Iterator[str]:
    yield from ("| | Command | What it does |", "|---|---|---|")
    before = ""
    for command in every:
        shown = f"**{command.heading}**" if command.heading != before else ""
        yield (f"| {shown} | [`{command.words}`](#{command.words.replace(' ', '-')}) |"
               f" {_first(command.parsed.help)} |")
        before = command.heading
    yield ""


def _first(text: str) -> str:
    return _cell(text.strip().partition("\n\n")[0])


def _section(command: Command, shared: Collection[str]) -> Iterator[str]:
    arguments = [each for each in command.parsed.params if _is_argument(each)]
    usage = " ".join([command.words, *(_shown(each) for each in arguments), "[OPTIONS]"])
    yield from (f"## {command.words}", "", *inspect.cleandoc(command.parsed.help).splitlines(), "", f"`{usage}`", "")
    rows = {_row(command, each): each for each in command.own}
    if own := [row for row in rows if row not in shared]:
        yield from (*_HEAD, *own, "")
    if also := [f"`{rows[row].opts[-1]}`" for row in sorted(shared & rows.keys(), key=_by_name)]:
        yield from (f"Also [shared options](#shared-options): {', '.join(also)}.", "")
    if command.settings:
        yield from ("Also the [engine settings](#engine-settings).", "")


def _settings(every: list[Command]) -> Iterator[str]:
    """How the keys of `[serve]` are written as options."""
    takers = [command for command in every if command.settings]
    some = [command for command in takers if any(each.hidden for each in command.settings)]
    short = [_names(each) for each in takers[0].settings if len(each.opts) > 1]
    yield from ("## Engine settings", "",
                f"{_list(takers)} take the keys of [`[serve]`](scenario.md#serve) as flags, named as by `vllm serve`:",
                "`max_num_seqs` is `--max-num-seqs`. A boolean has two, such as `--enforce-eager` and"
                " `--no-enforce-eager`. A list is given value by value, each",
                "with the flag, and a table as JSON.",
                f"Flags with short names are {'; '.join(short)}.",
                f"{_list(some)} take those, too, that change neither the cost of a step nor what fits, and do not list"
                " them.", "")


def _list(commands: list[Command]) -> str:
    *first, last = (f"`{command.words}`" for command in commands)
    return f"{', '.join(first)} and {last}"


def _row(command: Command, parameter: Any) -> str:
    cells = (_names(parameter), _value(command, parameter), _default(parameter), _cell(parameter.help or ""))
    return f"| {' | '.join(cells)} |"


def _names(parameter: Any) -> str:
    if _is_argument(parameter):
        return f"`{_shown(parameter)}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _shown(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper().replace("_", "-") + ("..." if argument.nargs == -1 else "")
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _value(command: Command, parameter: Any) -> str:
    if parameter.metavar:
        return f"`{parameter.metavar}`".replace("|", r"\|")
    kind = inspect.signature(command.function, eval_str=True).parameters[parameter.name].annotation
    return _type(kind)


def _type(kind: Any) -> str:
    """What a value of *kind* is called; a flag has none."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) in (list, tuple):
        return _type(get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    return _TYPES.get(kind, "text")


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if isinstance(said := getattr(parameter, "show_default", None), str):
        return said if " " in said else f"`{said}`"
    if value in (None, "", [], ()) or callable(value) or value is False:
        return ""
    if value is True:
        return f"`{parameter.opts[0]}`"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _is_argument(parameter: Any) -> bool:
    return not parameter.opts[0].startswith("-")


def _is_setting(parameter: Any) -> bool:
    return bool(getattr(parameter, "rich_help_panel", None) == SERVE_PANEL)


def _is_hidden(parameter: Any) -> bool:
    return bool(getattr(parameter, "hidden", False)) or parameter.name == "help"
