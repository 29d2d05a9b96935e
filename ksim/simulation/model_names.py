"""Hugging Face's names of models to the catalogue's, and what a name says of the format of the weights."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from attrs import field, frozen

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

#: Endings that say how weights are stored: the pattern, and the settings that follow.
_FORMATS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (r"(nv|modelopt-)?fp4(-v\d)?", {"quantization": "nvfp4"}),
    (r"mxfp4", {"quantization": "mxfp4"}),
    (r"(w8a8-|quantized-)?fp8(-dynamic|-static|-kv|-tensor|-block)?", {"quantization": "fp8"}),
    (r"(awq|gptq)(-?int4|-?4bit)?(-marlin)?|(quantized\.)?w4a16(-g\d+)?|int4(-awq|-gptq)?",
     {"quantization": "int4_w4a16"}),
    (r"bf16", {"quantization": "none"}),
)
_REFUSED = (r"gguf|(bnb-)?(4|8)bit|bnb|(gptq-)?int8|(quantized\.)?w8a8|w8a16|exl\d|mlx|ud-.*|q\d_.*")
#: A release's date behind a name: 0528, 2507, 2024-07-18, v0.3.
_DATE = re.compile(r"-(?:\d{4}(?:-\d\d){0,2}|v\d+(?:\.\d+)*)$")
#: Organisations whose FP8 is in blocks of 128 x 128, as DeepSeek's.
_BLOCKS = ("qwen", "minimaxai", "deepseek-ai", "zai-org/glm-5")


@frozen
class ModelName:
    """A model of the catalogue, or a path, with the settings that the name implies and what was assumed."""

    name: str
    serve: Mapping[str, Any] = field(factory=dict)
    assumed: tuple[str, ...] = ()


def named(text: str, where: str, folder: Path | None = None, remedy: str = "--model") -> ModelName:
    """The model that *text* names: on Hugging Face, in the catalogue, or by its path, from *folder*.

    Raises ConfigError for one that is not known; it says what to do, with the option *remedy*.
    """
    path = (folder or Path()) / text
    if catalog.is_file(text) and (path.exists() or "/" not in text):
        return ModelName(str(path))
    if text in catalog.entries("models"):
        return ModelName(text)
    if path.is_dir() and (path / "config.json").exists():
        return ModelName(str(path))
    return _known(text, where, remedy)


def _known(text: str, where: str, remedy: str) -> ModelName:
    if name := _exact().get(text.lower()):
        return ModelName(name)
    stem = text.rstrip("/").rpartition("/")[2].lower()
    if re.search(rf"-({_REFUSED})$", stem):
        raise ConfigError(where, f"{text}: weights in that format are not simulated; name the model, or a config.json,"
                                 f" with {remedy}, and a format with --quantization")
    plain, serve = _without_format(stem, text.lower())
    name, stem, notes = _of_stem(plain)
    if not name:
        raise ConfigError(where, _unknown(text, plain, remedy))
    serve = {**_table()["serve"].get(plain, _table()["serve"].get(stem, {})), **serve}
    return ModelName(name, serve, (f"taken as {name} of the catalogue{notes}", *([_said(serve)] if serve else [])))


def _said(serve: Mapping[str, Any]) -> str:
    said = ", ".join(f"{key} = {value}" for key, value in serve.items())
    return f"its name says {said}; a config.json says which layers are in that format: download it, and name it instead"


def _without_format(stem: str, text: str) -> tuple[str, Mapping[str, Any]]:
    """*stem* without the format of its weights, and the settings that follow."""
    for pattern, serve in _FORMATS:
        if match := re.search(rf"[-_.]({pattern})$", stem):
            return stem[:match.start()], _of_owner(text, dict(serve))
    return stem, {}


def _of_owner(text: str, serve: dict[str, Any]) -> Mapping[str, Any]:
    """What the organisation's checkpoints in that format have of their own."""
    if serve["quantization"] == "fp8" and text.startswith(_BLOCKS):
        return {"quantization": "fp8_block"}
    if text.startswith("meta-llama/") and serve["quantization"] == "fp8":
        return {**serve, "unquantized": ["attention"]}
    if text.startswith("nvidia/") and "deepseek" in text:
        return {**serve, "unquantized": ["attention"]}
    return serve


def _of_stem(stem: str) -> tuple[str, str, str]:
    """The catalogue's name of a *stem* or of it with endings cut off, what is left, and what to say of the endings.

    The name is empty if there is none.
    """
    names = _names()
    cut: list[str] = []
    while stem:
        if stem in names:
            return names[stem], stem, f"; {', '.join(reversed(cut))} changes no shape" if cut else ""
        ending = _ending(stem)
        if not ending:
            break
        cut.append(ending.lstrip("-"))
        stem = stem[:-len(ending)]
    return "", "", ""


def _ending(stem: str) -> str:
    if date := _DATE.search(stem):
        return date[0]
    return next((f"-{word}" for word in _table()["suffixes"] if stem.endswith(f"-{word}")), "")


@cache
def _table() -> Mapping[str, Any]:
    return catalog.load("names", "models")


@cache
def _exact() -> Mapping[str, str]:
    """The catalogue's models by the name that their config.json has."""
    models = {name: catalog.load("models", name).get("_name_or_path", name) for name in catalog.entries("models")}
    return {full.lower(): name for name, full in models.items()}


@cache
def _names() -> Mapping[str, str]:
    """The catalogue's models by all stems that mean them."""
    own = {name: name for name in catalog.entries("models")}
    full = {known.rpartition("/")[2]: name for known, name in _exact().items()}
    full |= {_without_format(stem, "")[0]: name for stem, name in full.items()}
    return {**full, **_table()["names"], **own}


def _unknown(text: str, stem: str, remedy: str) -> str:
    close = get_close_matches(stem, _names(), n=3, cutoff=0.6)
    near = f"; near by name are {', '.join(dict.fromkeys(_names()[name] for name in close))}" if close else ""
    page = f" (huggingface.co/{text}/raw/main/config.json)" if re.fullmatch(r"[\w.-]+/[\w.-]+", text) else ""
    return (f"no model of the catalogue is {text!r}{near}; download its config.json{page} and name the file: {remedy}"
            f" config.json")
