"""A command that may start an engine: its words, its environment, and the image that it runs in."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from ksim.deploy.imported import Launch, Wanted
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

#: The folder of programs that start engines.
FOLDER = "deploy.programs"


@frozen
class Word:
    """A word of a command, and its place in the text."""

    text: str
    where: str


@frozen
class Command:
    """The words of a command, without the variables and the `docker run` before it."""

    words: tuple[Word, ...]
    where: str
    environment: Mapping[str, Word] = field(factory=dict)
    """Variables that the text sets for it."""
    image: Word | None = None
    """The container's image, whose name and tag tell the engine and its release."""
    files: Mapping[str, str] = field(factory=dict)
    """Files that the text itself writes, by path: those of here-documents, or of a ConfigMap."""
    folder: Path = Path()
    """Where relative paths lie."""

    @classmethod
    def of(cls, words: Sequence[str], where: str, **more: Any) -> "Command":
        """The command of *words* that all stand in one place, such as a container's `args`."""
        return cls(tuple(Word(text, where) for text in words), where, **more)


def program_of(command: Command) -> Any:
    """The program that knows *command*, or None."""
    for name in catalog.names(FOLDER):
        program = catalog.find(FOLDER, name)()
        if program.recognises(command):
            return program
    return None


def launch_of(command: Command, wanted: Wanted) -> Launch:
    """What *command* starts; raises ConfigError for one that starts no engine, or not one that ksim simulates."""
    program = program_of(command)
    if program is None:
        said = " ".join(word.text for word in command.words[:3]) or "nothing"
        raise ConfigError(command.where, f"{said!r} starts no engine that ksim knows: expected `vllm serve MODEL`,"
                                         f" `python -m sglang.launch_server` or `trtllm-serve MODEL`")
    launch: Launch = program.launch(command, wanted)
    return launch
