"""What launches of all programs have in common: finding the program in a command, the model, and the notes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ksim.deploy.commands import Command, Word
from ksim.deploy.environment import notes_of
from ksim.deploy.flags.given import Given
from ksim.deploy.flags.meaning import Reading, shown
from ksim.deploy.imported import Launch, Note, Wanted
from ksim.deploy.versions import Release
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError
from ksim.simulation.model_names import ModelName, named
from ksim.simulation.models import model_of as known_model
from ksim.specs.settings import EngineSettings

#: Commands that mention a program, and do not start it.
_MENTIONS = ("echo", "printf", "pip", "pip3", "apt", "apt-get", "grep", "pgrep", "pkill", "kill", "killall", "curl",
             "cat", "sed", "which", "git", "cd", "source", "hf", "huggingface-cli",
             "[[", "[", "test", "wget", "ls", "mkdir")
#: How far in a command its program stands behind others, such as numactl and mpirun with their options.
_REACH = 60


def behind(words: Sequence[Word], starts: Sequence[Sequence[str]]) -> list[Word] | None:
    """The words behind the first of *starts*, each the words that a program is started with; None without any."""
    if words and words[0].text in _MENTIONS:
        return None
    texts = [word.text for word in words[:_REACH]]
    for place in range(len(texts)):
        for start in starts:
            if _is_start(texts[place:place + len(start)], start):
                return [*words[place + len(start):]]
    return None


def _is_start(texts: Sequence[str], start: Sequence[str]) -> bool:
    return len(texts) == len(start) and texts[0].rpartition("/")[2] == start[0] and [*texts[1:]] == [*start[1:]]


def model_of(command: Command, wanted: Wanted, said: Word | None) -> tuple[ModelName, tuple[Note, ...]]:
    """The model that the line, or the user, names; raises ConfigError for none, and for one that is not known."""
    if wanted.model:
        return named(wanted.model, "--model"), ()
    if said is None:
        raise ConfigError(command.where, "names no model; write it behind the command, or say it with --model")
    model = named(said.text, said.where, command.folder)
    return model, tuple(Note(said.where, said.text, why) for why in model.assumed)


def value_of(given: Sequence[Given], dest: str, default: Any = None) -> Any:
    """The value of a flag, or *default* where it is not given."""
    return next((one.value for one in given if one.dest == dest), default)


def word_of(given: Sequence[Given], dest: str) -> Word | None:
    """The value of a flag as a word with its place."""
    return next((Word(str(one.value), one.where) for one in given if one.dest == dest), None)


def _keep_checkpoint(model: ModelName, reading: Reading, where: str) -> None:
    """Let a checkpoint's own FP8 stand where a flag says fp8: engines read it from config.json."""
    if reading.serve.get("quantization") != "fp8":
        return
    stored = model.serve.get("quantization") or known_model(model.name).decoder.quantization
    if stored.startswith("fp8"):
        del reading.serve["quantization"]
        reading.remarks.append(Note(where, "--quantization fp8", f"the checkpoint's own, {stored}"))


def _check_settings(serve: Mapping[str, Any], reading: Reading, where: str) -> None:
    """Raise ConfigError for settings that cannot be, at the place of the flag that they come from."""
    try:
        structure(EngineSettings, serve, "serve")
    except ConfigError as error:
        path, problem = error.args
        inner = path.removeprefix("serve").lstrip(": .")
        named = re.match(r"'(\w+)'", problem)
        key = re.split(r"[.\[]", inner)[0] or (named[1] if named else "")
        if (given := reading.places.get(key)) is None:
            raise ConfigError(where, f"{inner}: {problem}" if inner else problem) from None
        raise ConfigError(given.where, f"{shown(given.said)}: {inner}{': ' if inner else ''}{problem}") from None


def launch(command: Command, release: Release, model: ModelName, reading: Reading, **more: Any) -> Launch:
    """The launch of what was read; settings of the line count more than what the model's name implies."""
    _keep_checkpoint(model, reading, command.where)
    serve: Mapping[str, Any] = {**model.serve, **reading.serve}
    _check_settings(serve, reading, command.where)
    remarks = (*more.pop("remarks", ()), *release.remarks, *reading.remarks)
    idle = (*reading.idle, *notes_of(more.pop("environment", command.environment)))
    return Launch(command.where, release.engine, model.name, serve, idle=idle, remarks=remarks, **more)
