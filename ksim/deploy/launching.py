"""What all programs share from a command to its launch: release, model, environment, and checks of the settings."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from ksim.deploy.commands import EngineLaunch, ImportOptions, Note, ShellCommand, Word
from ksim.deploy.flags.given import Given, Parser, value_of, word_of
from ksim.deploy.flags.meaning import FlagReading, shown
from ksim.foundation import catalog
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.scenario.models import ModelName, format_of, named, unknown_format
from ksim.scenario.models import model_of as known_model
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import QUANTIZATIONS

#: Patterns of names, and why they have no effect here; the first that matches counts.
_WHY: Sequence[tuple[str, str]] = (
    (r".*(TOKEN|API_KEY|SECRET|PASSWORD).*", "a secret"),
    (r"HF_.*|HUGGING.*|TRANSFORMERS_.*|.*CACHE.*|.*_HOME|.*_DIR|XDG_.*|MODELSCOPE_.*",
     "where weights and caches lie; ksim simulates an engine that has started"),
    (r"CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER",
     "ksim places engines on GPUs by itself"),
    (r"NCCL_.*|NVSHMEM_.*|UCX_.*|GLOO_.*|MC_.*|RDMAV_.*|FI_.*|MPI_.*|OMPI_.*|PMIX_.*|.*NIXL.*|MOONCAKE_.*",
     "settings of communication libraries; ksim prices messages on the system's links"),
    (r".*LOG.*|.*TRACE.*|.*DEBUG.*|.*PROFIL.*|TQDM.*|.*USAGE_STATS.*|.*TELEMETRY.*",
     "logs and tracing change no schedule"),
    (r"PYTHON.*|PATH|LD_.*", "how Python runs"),
    (r"VLLM_USE_V1", "vLLM's V1 engine is the only one that is simulated"),
    (r"VLLM_.*|SGLANG_.*|SGL_.*|TRTLLM_.*|TLLM_.*|TORCH.*|PYTORCH_.*|FLASHINFER_.*|TRITON_.*|CUDA_.*|OMP_.*|MKL_.*",
     "how kernels and processes run; ksim's profiles are of those that the engine chooses by itself"),
)


def notes_of(environment: Mapping[str, Word]) -> tuple[Note, ...]:
    """Why each variable has no effect, for those that are about engines at all."""
    notes = ((name, word, _why(name)) for name, word in environment.items())
    return tuple(Note(word.where, name if why == "a secret" else f"{name}={word.text}", why)
                 for name, word, why in notes)


def take_variable(reading: FlagReading, command: ShellCommand, names: Sequence[str], setting: str) -> None:
    """Take the *setting* of DeepEP that one of the environment variables *names* switches on."""
    for name in names:
        word = command.environment.get(name)
        if word and word.known().text.lower() in ("1", "true") and "deepep" in reading.serve.get("all2all_backend", ""):
            reading.serve[setting] = True
            reading.remarks.append(Note(word.where, f"{name}={word.text}", f"taken as {setting}"))


def _why(name: str) -> str:
    other = "no variable that the engine is known for"
    return next((why for pattern, why in _WHY if re.fullmatch(pattern, name)), other)


#: The releases that ksim simulates, the oldest first: the number from which on, and the name.  Of vLLM, defaults
#: changed with 0.19 and 0.20 and between 0.22 and 0.33; releases between these two are taken as 0.33.
RELEASES: Mapping[str, Sequence[tuple[tuple[int, ...], str]]] = {
    "vllm": (((0,), "vllm-0.11"), ((0, 12), "vllm-0.18"), ((0, 19), "vllm-0.19"), ((0, 20), "vllm-0.22"),
             ((0, 23), "vllm-0.33")),
    "sglang": (((0, 5), "sglang-0.5"), ((0, 5, 8), "sglang-0.5.8"), ((0, 5, 9), "sglang-0.5.9"),
               ((0, 5, 10), "sglang-0.5.10"), ((0, 5, 23), "sglang-0.5.23")),
    "trtllm": (((1, 0), "trtllm-1.0"), ((1, 2), "trtllm-1.2")),
}
_TAG = re.compile(r"[:@-]v?(\d+(?:\.\d+)+)")


@frozen
class Release:
    """An engine of ksim/data/engines, and what was assumed."""

    engine: str
    remarks: tuple[Note, ...] = ()
    number: str = ""
    """The release that the user names; empty where nobody does."""


def release_of(program: str, command: ShellCommand, wanted: ImportOptions) -> Release:
    """The engine that is simulated for *command*: as the option says, or the image's tag, or else the newest.

    Raises ConfigError for a version that is none.
    """
    releases = RELEASES[program]
    if wanted.version in catalog.entries("engines"):
        return Release(str(wanted.version))
    said, where = wanted.version, "--version"
    if said is None and command.image is not None:
        said, where = tag_of(command.image.text), command.image.where
    if said is None:
        newest = releases[-1][1]
        why = "the newest that ksim simulates; nothing says which release runs (--version, or the image's tag)"
        return Release(newest, (Note("", f"engine = {newest}", why),))
    return release_named(program, said, where)


def tag_of(image: str) -> str | None:
    """The release that an image's tag names, or None."""
    match = _TAG.search(image)
    return match[1] if match else None


def release_named(program: str, said: str, where: str) -> Release:
    """The engine for the release that is *said*; raises ConfigError for one that is no release."""
    numbers = re.fullmatch(r"v?(\d+(?:\.\d+)*).*", said)
    if numbers is None:
        newest = ".".join(map(str, _number_of(RELEASES[program][-1][1])[:2]))
        raise ConfigError(where, f"{said!r} is no release; name one such as {newest}.0, or one of ksim's engines"
                                 f" ({', '.join(catalog.entries('engines'))})")
    number = tuple(map(int, numbers[1].split(".")))
    engine = _nearest(program, number)
    own = _number_of(engine)
    if number[:len(own)] == own:
        return Release(engine, number=numbers[1])
    return Release(engine, (Note(where, said, f"simulated as {engine}, the nearest release that ksim has"),),
                   numbers[1])


def _number_of(engine: str) -> tuple[int, ...]:
    """The release in the name of an *engine*, such as (0, 33) of vllm-0.33."""
    return tuple(map(int, engine.partition("-")[2].split(".")))


def _nearest(program: str, number: tuple[int, ...]) -> str:
    """What stands for the release *number*."""
    releases = RELEASES[program]
    earlier = [name for first, name in releases if first <= number]
    return earlier[-1] if earlier else releases[0][1]


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


def model_of(command: ShellCommand, wanted: ImportOptions, said: Word | None) -> tuple[ModelName, tuple[Note, ...]]:
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


def _keep_checkpoint(model: ModelName, reading: FlagReading, where: str) -> None:
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


def _check_settings(serve: Mapping[str, Any], reading: FlagReading, where: str) -> None:
    """Raise ConfigError for settings that cannot be, at the place of the flag that they come from."""
    try:
        structure(EngineSettings, serve, "serve")
    except ConfigError as error:
        path, problem = error.args
        inner = path.removeprefix("serve").lstrip(": .")
        named = re.match(r"'(\w+)'", problem)
        key = re.split(r"[.\[]", inner)[0] or (named[1] if named else "")
        said = re.search("|".join(map(re.escape, serve.get("sglang", {}))), problem) if inner == "sglang" else None
        inner_key = inner if inner.startswith("sglang.") else f"sglang.{said[0]}" if said else key
        if (given := reading.places.get(inner_key, reading.places.get(key))) is None:
            raise ConfigError(where, f"{inner}: {problem}" if inner else problem) from None
        raise ConfigError(given.where, f"{shown(given.said)}: {inner}{': ' if inner else ''}{problem}") from None


def _check_overrides(model: ModelName, reading: FlagReading, where: str) -> None:
    """Raise ConfigError, at the place of the flag, for overrides of config.json that make no model."""
    try:
        known_model(model.name, reading.serve.get("hf_overrides", {}))
    except ConfigError as error:
        given = reading.places.get("hf_overrides")
        raise ConfigError(given.where if given else where, f"{given.flag.name}: {error}" if given else str(error)
                          ) from None


def launch(command: ShellCommand, release: Release, model: ModelName, reading: FlagReading,
           **more: Any) -> EngineLaunch:
    """The launch of what was read; settings of the line count more than what the model's name implies."""
    _keep_checkpoint(model, reading, command.where)
    serve: Mapping[str, Any] = {**model.serve, **reading.serve}
    _check_settings(serve, reading, command.where)
    _check_overrides(model, reading, command.where)
    remarks = (*more.pop("remarks", ()), *release.remarks, *reading.remarks)
    idle = (*reading.idle, *notes_of(more.pop("environment", command.environment)))
    return EngineLaunch(command.where, release.engine, model.name, serve, idle=idle, remarks=remarks, **more)
