"""A command that may start an engine: its words, its environment, and the image that it runs in."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from attrs import field, frozen

from ksim.deploy.launches import Launch, Wanted
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

#: The folder of programs that start engines.
FOLDER = "deploy.programs"
#: Commands that mention a program, and do not start it.
MENTIONS = ("echo", "printf", "pip", "pip3", "apt", "apt-get", "grep", "pgrep", "pkill", "kill", "killall", "curl",
            "cat", "sed", "which", "git", "cd", "source", "hf", "huggingface-cli",
            "[[", "[", "test", "wget", "ls", "mkdir")
_SHELLS = ("sh", "bash", "dash", "ash", "zsh")
#: How far in a command its program stands behind others, such as numactl and mpirun with their options.
_REACH = 60


@frozen
class Word:
    """A word of a command, and its place in the text."""

    text: str
    where: str
    unknown: str = ""
    """Why a shell's variable in it has no value here, and what to do; whoever needs the word refuses it so."""

    def known(self) -> "Word":
        """This word; raises ConfigError where a variable in it has no value."""
        if self.unknown:
            raise ConfigError(self.where, self.unknown)
        return self


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


def behind(words: Sequence[Word], starts: Sequence[Sequence[str]]) -> list[Word] | None:
    """The words behind the first of *starts*, each the words that a program is started with; None without any."""
    if words and words[0].text in MENTIONS:
        return None
    texts = [word.text for word in words[:_REACH]]
    for place in range(len(texts)):
        for start in starts:
            if _is_start(texts[place:place + len(start)], start):
                return [*words[place + len(start):]]
    return None


def _is_start(texts: Sequence[str], start: Sequence[str]) -> bool:
    return len(texts) == len(start) and texts[0].rpartition("/")[2] == start[0] and [*texts[1:]] == [*start[1:]]


def script_place(words: Sequence[str]) -> int | None:
    """The place among *words* of TEXT in `sh -c TEXT`; None where they start no shell on a text."""
    shell = next((place for place, word in enumerate(words) if PurePosixPath(word).name in _SHELLS), None)
    if shell is None:
        return None
    behind_options = (place for place in range(shell + 1, len(words)) if not words[place].startswith(("-", "pipefail")))
    text = next(behind_options, None)
    return text if any(re.fullmatch(r"-\w*c", option) for option in words[shell + 1:text]) else None


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
