"""Scripts that a container's shell runs: the commands in them, at their places in the manifest."""

from collections.abc import Iterator

from attrs import evolve

from ksim.deploy.commands.command import Command, Word, program_of
from ksim.deploy.shell.script import Script, Simple
from ksim.deploy.texts.embedded import Embedded
from ksim.deploy.texts.entries import Entry
from ksim.deploy.texts.pasted import Pasted

__all__ = ["commands_of_script", "lines_of_script"]


def commands_of_script(script: Entry, text: str, command: Command) -> Iterator[Command]:
    """The commands of *script*, whose *text* has the cluster's variables filled in, that start engines.

    They run as *command* does: in its environment, its image and with its files.
    """
    environment = {name: word.text for name, word in command.environment.items()}
    pasted = Embedded(text, "", command.folder, script)
    files = dict(command.files)
    for simple in Script(pasted, environment).commands():
        simple.keep_document(files)
        if _is_engine([word.text for word in simple.words]):
            yield _command(simple, pasted, evolve(command, files=dict(files)))


def lines_of_script(script: Entry, text: str, command: Command) -> Iterator[tuple[Word, ...]]:
    """The words of all commands of *script*, which runs as *command* does."""
    environment = {name: word.text for name, word in command.environment.items()}
    pasted = Embedded(text, "", command.folder, script)
    for simple in Script(pasted, environment).commands():
        yield simple.words


def _command(simple: Simple, pasted: Pasted, around: Command) -> Command:
    where = pasted.at(simple.line)
    simple.check_unconditional(where)
    environment = {**around.environment, **simple.exported, **simple.assigned}
    return evolve(around, words=simple.words, where=where, environment=environment)


def _is_engine(names: list[str]) -> bool:
    return program_of(Command.of(names, "")) is not None
