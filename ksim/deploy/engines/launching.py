"""What the launches of all programs have in common: the model, the check of the settings, and the notes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ksim.deploy.commands.command import Command, Word
from ksim.deploy.engines.environment import notes_of
from ksim.deploy.engines.releases import Release
from ksim.deploy.flags.given import Given, Parser, value_of, word_of
from ksim.deploy.flags.meaning import Reading, shown
from ksim.deploy.launches import Launch, Note, Wanted
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError
from ksim.simulation.model_names import ModelName, named
from ksim.simulation.models import model_of as known_model
from ksim.specs.settings import EngineSettings


def model_word(parser: Parser, given: Sequence[Given], dest: str = "model") -> Word | None:
    """The model: the word without a flag, or that of *dest*; raises ConfigError for further words."""
    extra = parser.positionals[0 if value_of(given, dest) else 1:]
    if extra:
        raise ConfigError(extra[0].where, f"{extra[0].text!r} belongs to no flag; quote values that have blanks")
    return parser.positionals[0] if parser.positionals else word_of(given, dest)


def model_of(command: Command, wanted: Wanted, said: Word | None) -> tuple[ModelName, tuple[Note, ...]]:
    """The model that the line, or the user, names; raises ConfigError for none, and for one that is not known."""
    if wanted.model:
        return named(wanted.model, "--model"), ()
    if said is None:
        raise ConfigError(command.where, "names no model; write it behind the command, or say it with --model")
    model = named(said.text, said.where, command.folder)
    return model, tuple(Note(said.where, said.text, why) for why in model.assumed)


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
