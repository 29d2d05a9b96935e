"""What the launches of all programs have in common: the model, the check of the settings, and the notes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from ksim.deploy.commands.command import Command, Word
from ksim.deploy.engines.environment import notes_of
from ksim.deploy.engines.releases import Release
from ksim.deploy.flags.given import Given, Parser, value_of, word_of
from ksim.deploy.flags.meaning import Reading, shown
from ksim.deploy.launches import Launch, Note, Wanted
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.simulation.model_names import ModelName, format_of, named, unknown_format
from ksim.simulation.models import model_of as known_model
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import QUANTIZATIONS

#: Flags that leave the format to the checkpoint, and those that go with a checkpoint in that format.
OF_CHECKPOINT = ("compressed-tensors", "modelopt", "modelopt_mixed", "quark", "inc", "auto-round", "moe_wna16")
_METHODS = ("awq", "awq_marlin", "gptq", "gptq_marlin", "bitsandbytes")
_ASSUMED = ("assumed is a checkpoint with all layers in groups of 128 weights with zero points, embedding and head in"
            " 16 bits; its config.json says what it has: name that with --model")


def model_word(parser: Parser, given: Sequence[Given], dest: str = "model") -> Word | None:
    """The model: the word without a flag, or that of *dest*; raises ConfigError for further words."""
    extra = parser.positionals[0 if value_of(given, dest) else 1:]
    if extra:
        raise ConfigError(extra[0].where, f"{extra[0].text!r} belongs to no flag; quote values that have blanks")
    return parser.positionals[0] if parser.positionals else word_of(given, dest)


def model_of(command: Command, wanted: Wanted, said: Word | None) -> tuple[ModelName, tuple[Note, ...]]:
    """The model that the line, or the user, names; raises ConfigError for none, and for one that is not known."""
    if wanted.model:
        return _in_format(named(wanted.model, "--model"), said)
    if said is None:
        raise ConfigError(command.where, "names no model; write it behind the command, or say it with --model")
    model = named(said.text, said.where, command.folder)
    return model, tuple(Note(said.where, said.text, why) for why in model.assumed)


def _in_format(model: ModelName, said: Word | None) -> tuple[ModelName, tuple[Note, ...]]:
    """The *model* that the user names, with the weights of the checkpoint that the line serves."""
    if said is None or "quantization" in model.serve or stored(model) != "none":
        return model, ()
    served = format_of(said.text)
    if not served.serve and unknown_format(said.text):
        return model, (Note(said.where, said.text, "weights in that format are not simulated: they are in that of"
                                                   " --quantization, and in 16 bits without one"),)
    return (evolve(model, serve={**model.serve, **served.serve}),
            tuple(Note(said.where, said.text, why) for why in served.assumed))


def stored(model: ModelName) -> str:
    """The quantization of a checkpoint, by its name or its config.json."""
    stored: str = model.serve.get("quantization") or known_model(model.name).decoder.quantization
    return stored


def _keep_checkpoint(model: ModelName, reading: Reading, where: str) -> None:
    """Let a checkpoint's own format stand where a flag says it less exactly: engines read it from config.json.

    Raises ConfigError where nothing says the format, and where a flag for checkpoints in one format meets another.
    """
    asked, own = reading.serve.get("quantization", "none"), stored(model)
    if asked in ("none", own) or asked not in (*OF_CHECKPOINT, *_METHODS, "fp8"):
        return
    given = reading.places.get("quantization")
    where, said = (given.where, given.said) if given else (where, f"--quantization {asked}")
    if own == "none" and asked in OF_CHECKPOINT:
        raise ConfigError(where, f"{said}: the checkpoint says its format, and neither the name {model.name} nor a"
                                 f" config.json at hand does; name its config.json with --model")
    if own == "none":
        if asked not in ("fp8", "bitsandbytes"):
            reading.remarks.append(Note(where, said, _ASSUMED))
    elif asked in OF_CHECKPOINT or _alike(asked, own):
        del reading.serve["quantization"]
        reading.remarks.append(Note(where, said, f"the checkpoint's own, {own}"))
    elif asked in _METHODS:
        raise ConfigError(where, f"{said}: the checkpoint is in {own}, and vLLM refuses to start where the two differ;"
                                 f" leave the flag out")


def _alike(asked: str, own: str) -> bool:
    """Whether two quantizations differ in details alone, such as the size of groups."""
    if asked.startswith("bitsandbytes") or own.startswith("bitsandbytes"):
        return asked.startswith("bitsandbytes") and own.startswith("bitsandbytes")
    formats = [QUANTIZATIONS[name] for name in (asked, own)]
    integers = all(each.weights.element in (DType.INT4, DType.INT8) and each.activations is DType.BF16
                   for each in formats)
    return integers or formats[0].weights.element is formats[1].weights.element


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


def _check_overrides(model: ModelName, reading: Reading, where: str) -> None:
    """Raise ConfigError, at the place of the flag, for overrides of config.json that make no model."""
    try:
        known_model(model.name, reading.serve.get("hf_overrides", {}))
    except ConfigError as error:
        given = reading.places.get("hf_overrides")
        raise ConfigError(given.where if given else where, f"{given.flag.name}: {error}" if given else str(error)
                          ) from None


def launch(command: Command, release: Release, model: ModelName, reading: Reading, **more: Any) -> Launch:
    """The launch of what was read; settings of the line count more than what the model's name implies."""
    _keep_checkpoint(model, reading, command.where)
    serve: Mapping[str, Any] = {**model.serve, **reading.serve}
    _check_settings(serve, reading, command.where)
    _check_overrides(model, reading, command.where)
    remarks = (*more.pop("remarks", ()), *release.remarks, *reading.remarks)
    idle = (*reading.idle, *notes_of(more.pop("environment", command.environment)))
    return Launch(command.where, release.engine, model.name, serve, idle=idle, remarks=remarks, **more)
