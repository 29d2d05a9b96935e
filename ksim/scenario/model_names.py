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
from ksim.foundation.files import is_there
from ksim.specs.shard import QUANTIZATIONS, grouped

_BITS = "-?int4|-?4-?bits?"
#: Endings that say how weights are stored: the pattern, and the settings that follow.
_FORMATS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (r"(nv|modelopt-)?fp4(-v\d)?", {"quantization": "nvfp4"}),
    (r"mxfp4", {"quantization": "mxfp4"}),
    (r"(w8a8-|quantized-)?fp8(-w8a8)?(-dynamic|-static|-kv|-tensor|-block)?", {"quantization": "fp8"}),
    (rf"int4-awq|awq({_BITS}|-w4a16|-marlin|-gemm|-sym|-asym)*", {"quantization": "awq"}),
    (r"int8-gptq|gptq-?(w8a16|int8|8-?bits?)", {"quantization": "int8_w8a16_g128_zp"}),
    (rf"int4-gptq|gptq({_BITS}|-marlin)*", {"quantization": "gptq"}),
    (r"w4a16-asym", {"quantization": "int4_w4a16_g128_zp"}),
    (rf"(quantized[.-])?w4a16|(autoround-)?int4(-autoround|-mixed|-w4a16)?|autoround({_BITS})?",
     {"quantization": "int4_w4a16_g128"}),
    (r"(quantized[.-])?(int8-)?w8a16", {"quantization": "int8_w8a16_channel"}),
    (r"(quantized[.-])?w8a8(-int8|-dynamic-per-token)?|int8(-w8a8|-dynamic)?", {"quantization": "int8_w8a8"}),
    (r"(unsloth-)?bnb(-nf4)?(-?4bit)?|nf4", {"quantization": "bitsandbytes"}),
    (r"(unsloth-)?bnb-?8bit", {"quantization": "bitsandbytes_8bit"}),
    (r"bf16", {"quantization": "none"}),
)
#: The size of groups behind a format: -g64, -64g.
_GROUP = re.compile(r"-(?:g(32|64|128)|(32|64|128)g)(-actorder[-_]true)?$")
_REFUSED = (r"gguf|(4|8)bit|exl\d|mlx|ud-.*|q\d_.*")
#: A release's date behind a name: 0528, 2507, 2024-07-18, v0.3.
_DATE = re.compile(r"-(?:\d{4}(?:-\d\d){0,2}|v\d+(?:\.\d+)*)$")
#: A folder of Hugging Face's cache: models--ORG--NAME/snapshots/REVISION.
_CACHED = re.compile(r"(?:.*/)?models--([^/]+?)--([^/]+)(?:/.*)?")
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
    if catalog.is_file(text) and (is_there(path) or "/" not in text):
        return ModelName(str(path))
    if text in catalog.entries("models"):
        return ModelName(text)
    if is_there(path / "config.json"):
        return ModelName(str(path))
    return _known(_hub_name(text), where, remedy)


def _hub_name(text: str) -> str:
    """ORG/NAME of a folder in Hugging Face's cache; any other *text* as it is."""
    cached = _CACHED.fullmatch(text)
    return f"{cached[1]}/{cached[2]}" if cached else text


def _known(text: str, where: str, remedy: str) -> ModelName:
    if name := _exact().get(text.lower()):
        return ModelName(name)
    stem = text.rstrip("/").rpartition("/")[2].lower()
    plain, serve = _without_format(stem, text.lower())
    if not serve and unknown_format(text):
        raise ConfigError(where, f"{text}: weights in that format are not simulated; name the model, or a config.json,"
                                 f" with {remedy}, and a format with --quantization")
    name, stem, notes = _of_stem(plain)
    if not name:
        raise ConfigError(where, _unknown(text, plain, remedy))
    serve = {**_table()["serve"].get(plain, _table()["serve"].get(stem, {})), **serve}
    return ModelName(name, serve, (f"taken as {name} of the catalogue{notes}", *([_said(serve)] if serve else [])))


def format_of(text: str) -> ModelName:
    """What a name on Hugging Face says of the format of the weights, of whichever model: its settings, and the note."""
    text = _hub_name(text)
    _, serve = _without_format(text.rstrip("/").rpartition("/")[2].lower(), text.lower())
    return ModelName("", serve, (_said(serve),) if serve else ())


def unknown_format(text: str) -> bool:
    """Whether a name ends in a format that is not simulated, such as GGUF."""
    return re.search(rf"-({_REFUSED})$", _hub_name(text).rstrip("/").lower()) is not None


def _said(serve: Mapping[str, Any]) -> str:
    """What settings follow from a name, and what is assumed of the checkpoint."""
    said = ", ".join(f"{key} = {value}" for key, value in serve.items())
    chosen = QUANTIZATIONS.get(serve.get("quantization", ""))
    group = f"groups of {chosen.weights.group} weights, " if chosen and chosen.weights.group else ""
    return (f"its name says {said}; assumed are {group}all layers in that format, embedding and head in 16 bits; its"
            f" config.json says what it has: download it, and name it instead")


def _without_format(stem: str, text: str) -> tuple[str, Mapping[str, Any]]:
    """*stem* without the format of its weights, and the settings that follow."""
    group = _GROUP.search(stem)
    said = stem[:group.start()] if group else stem
    for pattern, serve in _FORMATS:
        if match := re.search(rf"[-_.]({pattern})$", said):
            return said[:match.start()], _of_owner(text, _in_groups(dict(serve), group))
    return stem, {}


def _in_groups(serve: dict[str, Any], group: re.Match[str] | None) -> dict[str, Any]:
    """*serve* with the size of groups, and the activation order, that a name says."""
    if group is None:
        return serve
    whole = grouped(4, 128, zeros=True) if serve["quantization"] in ("awq", "gptq") else serve["quantization"]
    name = whole.replace("_g128", f"_g{group[1] or group[2]}") + "_act_order" * bool(group[3])
    return {**serve, "quantization": name} if name in QUANTIZATIONS and name != grouped(4, 128, zeros=True) else serve


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
