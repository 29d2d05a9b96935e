"""Scripts that a container's shell runs: arrays and sums are written out, then the lines are read as a shell's."""

import ast
import operator
import re
from collections.abc import Iterator, Mapping

from attrs import evolve

from ksim.deploy.commands.command import Command, Word, program_of
from ksim.deploy.shell.script import Script, Simple
from ksim.deploy.texts.embedded import Embedded
from ksim.deploy.texts.entries import Entry
from ksim.deploy.texts.pasted import Pasted
from ksim.foundation.errors import ConfigError

__all__ = ["commands_of_script", "lines_of_script"]

_ARRAY = re.compile(r"(?m)^[ \t]*(\w+)(\+?)=\(")
_USE = re.compile(r"\"?\$\{(\w+)\[[@*]\]\}\"?")
_SUM = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_NAME = re.compile(r"\$\{(\w+)(?::?-(\w*))?\}|\$?(\b[A-Za-z_]\w*)")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
              ast.Mod: operator.mod}


def commands_of_script(script: Entry, text: str, command: Command) -> Iterator[Command]:
    """The commands of *script*, whose *text* has the cluster's variables filled in, that start engines.

    They run as *command* does: in its environment, its image and with its files.
    """
    environment = {name: word.text for name, word in command.environment.items()}
    pasted = Embedded(_written_out(text, environment), "", command.folder, script)
    files = dict(command.files)
    for simple in Script(pasted, environment).commands(_is_engine):
        if simple.document is not None and simple.into:
            files[simple.into] = simple.document
        if _is_engine([word.text for word in simple.words]):
            yield _command(simple, pasted, evolve(command, files=dict(files)))


def lines_of_script(script: Entry, text: str, command: Command) -> Iterator[tuple[Word, ...]]:
    """The words of all commands of *script*, which runs as *command* does."""
    environment = {name: word.text for name, word in command.environment.items()}
    pasted = Embedded(_written_out(text, environment), "", command.folder, script)
    for simple in Script(pasted, environment).commands(lambda names: False):
        yield simple.words


def _command(simple: Simple, pasted: Pasted, around: Command) -> Command:
    where = pasted.at(simple.line)
    if simple.condition:
        raise ConfigError(where, f"starts an engine under `{simple.condition}`, and whether it runs is what a shell"
                                 f" would have to find out; leave only the command that runs")
    environment = {**around.environment, **simple.exported, **simple.assigned}
    return evolve(around, words=simple.words, where=where, environment=environment)


def _is_engine(names: list[str]) -> bool:
    return program_of(Command.of(names, "")) is not None


def _written_out(text: str, environment: Mapping[str, str]) -> str:
    """*text* with arrays in place of their uses and sums in place of what is to be computed; lines stay where they are.
    """
    text, arrays = _without_arrays(text)
    for _ in range(len(arrays) + 1):
        text = _USE.sub(lambda match: " ".join(arrays.get(match[1], [match[0]])), text)
    known = {**environment, **dict(re.findall(r"(?m)^[ \t]*(?:export )?(\w+)=(\d+)[ \t]*$", text))}
    return _SUM.sub(lambda match: _sum(match, known), text)


def _without_arrays(text: str) -> tuple[str, dict[str, list[str]]]:
    arrays: dict[str, list[str]] = {}
    place = 0
    while match := _ARRAY.search(text, place):
        end = _closing(text, match.end())
        inner = text[match.end():end]
        lines = [line for line in (re.sub(r"(^|\s)#.*$", "", line).strip().removesuffix("\\").strip()
                                   for line in inner.split("\n")) if line]
        arrays[match[1]] = [*(arrays.get(match[1], []) if match[2] else []), *lines]
        text = text[:match.start()] + "\n" * inner.count("\n") + text[end + 1:]
        place = match.start()
    return text, arrays


def _closing(text: str, start: int) -> int:
    """The place of the bracket that closes an array whose first word is at *start*."""
    quote = ""
    for place in range(start, len(text)):
        letter = text[place]
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == ")":
            return place
    return len(text)


def _sum(match: "re.Match[str]", known: Mapping[str, str]) -> str:
    """The value of `$((...))`, or the text as it is where something in it is not known."""
    filled = _NAME.sub(lambda name: known.get(name[1] or name[3] or "") or name[2] or "?", match[1])
    try:
        return str(_value(ast.parse(filled.strip(), mode="eval").body))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return match[0]


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp):
        return int(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError(node)
