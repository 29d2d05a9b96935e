"""Flags with values that ksim writes differently: formats, adapters, images, EPLB, overrides of config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from ksim.deploy.engines.launching import OF_CHECKPOINT
from ksim.deploy.flags.given import Given
from ksim.deploy.flags.json_tables import known_keys, table_of
from ksim.deploy.flags.meaning import Handler, Reading
from ksim.deploy.flags.values import integer, json_of
from ksim.deploy.launches import Note
from ksim.foundation.errors import ConfigError
from ksim.foundation.files import is_there
from ksim.specs.multimodal import LimitMmPerPrompt, MmProcessorKwargs

#: vLLM's formats by ksim's names.
_FORMATS = {"fp8": "fp8", "fp8_per_tensor": "fp8", "fp8_per_channel": "fp8", "fbgemm_fp8": "fp8", "ptpc_fp8": "fp8",
            "fp8_per_block": "fp8_block", "deepseek_v4_fp8": "fp8_block",
            "modelopt_fp4": "modelopt_fp4", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "gpt_oss_mxfp4": "mxfp4",
            **{name: name for name in ("awq", "awq_marlin", "gptq", "gptq_marlin", "bitsandbytes")},
            "auto_awq": "awq", "auto_gptq": "gptq"}


def _quantization(reading: Reading, given: Given) -> None:
    method = str(given.value).lower()
    if method in ("none", ""):
        return reading.pass_over(given, "the weights' own format")
    if method not in (*_FORMATS, *OF_CHECKPOINT):
        raise ConfigError(given.where, f"{given.said}: that format is not simulated; ksim has"
                                       f" {', '.join(sorted(_FORMATS))}")
    reading.serve["quantization"] = _FORMATS.get(method, method)


def _max_model_len(reading: Reading, given: Given) -> None:
    if given.value == -1:
        return reading.remark(given, "vLLM cuts the context to what fits; here it is that of config.json")
    reading.serve["max_model_len"] = given.value


def _lora_modules(reading: Reading, given: Given) -> None:
    reading.serve["lora_modules"] = [adapter(reading, given, text) for text in given.value]


def adapter(reading: Reading, given: Given, text: Any) -> dict[str, Any]:
    """An adapter as a scenario has it; without its adapter_config.json at hand, its rank is assumed."""
    name, path = _name_and_path(given, text)
    if path and is_there(Path(path) / "adapter_config.json"):
        return {"name": name, "path": path}
    why = "its adapter_config.json is not here: it gets rank 16, and all modules that adapters may adapt"
    reading.remarks.append(Note(given.where, f"--lora-modules {name}", why))
    return {"name": name, "rank": 16}


def _name_and_path(given: Given, text: Any) -> tuple[str, str]:
    try:
        table = json.loads(text) if isinstance(text, str) and text.lstrip().startswith("{") else text
    except ValueError as error:
        raise ConfigError(given.where, f"--lora-modules is not valid JSON: {error}") from None
    if isinstance(table, Mapping) and table.get("name"):
        return str(table["name"]), str(table.get("path", ""))
    name, equals, path = str(text).partition("=")
    if not equals or not name:
        raise ConfigError(given.where, f"--lora-modules: expected NAME=PATH or JSON with a name and a path, not"
                                       f" {text!r}")
    return name, path


def _eplb(reading: Reading, given: Given) -> None:
    table = table_of(given)
    if table.get("num_redundant_experts") is not None:
        reading.serve["num_redundant_experts"] = _whole(table["num_redundant_experts"], given)
    if others := [key for key in table if key != "num_redundant_experts"]:
        reading.remark(given, f"{', '.join(others)}: ksim's experts are placed evenly from the start")


def _whole(value: Any, given: Given) -> Any:
    """A whole number, which may be in quotes."""
    try:
        return integer(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ConfigError(given.where, f"{given.flag.name}: {error}") from None


def _limits(reading: Reading, given: Given) -> None:
    table = {key: value["count"] if isinstance(value, Mapping) and "count" in value else value
             for key, value in _limit_table(given).items()}
    known = known_keys(given, table, LimitMmPerPrompt, ("audio", "vision_chunk"))
    if known:
        reading.serve["limit_mm_per_prompt"] = known
    if others := [key for key in table if key not in known]:
        reading.remark(given, f"{', '.join(others)}: only images are simulated")


def _limit_table(given: Given) -> dict[str, Any]:
    """The table of `--limit-mm-per-prompt`, which was image=2,video=0 once."""
    if not isinstance(given.value, str):
        return table_of(given)
    pairs = [part.partition("=") for part in given.value.split(",") if part]
    if any(not value.isdecimal() for _, _, value in pairs):
        raise ConfigError(given.where, f"{given.said}: expected JSON such as '{{\"image\": 2}}'")
    return {key: int(value) for key, _, value in pairs}


def _processor(reading: Reading, given: Given) -> None:
    reading.serve["mm_processor_kwargs"] = known_keys(given, table_of(given), MmProcessorKwargs)


def overrides(reading: Reading, given: Given) -> None:
    """Keys of config.json that a flag overrides, as a table or as its JSON."""
    try:
        read = evolve(given, value=json_of(given.value)) if isinstance(given.value, str) and given.value else given
    except ValueError as error:
        raise ConfigError(given.where, f"{given.flag.name}: {error}") from None
    table = table_of(read)
    if empty := [key for key, value in table.items() if value is None]:
        raise ConfigError(given.where, f"{given.flag.name}: {', '.join(empty)}: null takes a key away, which a scenario"
                                       f" cannot say; take it out of a copy of config.json, and name that with --model")
    if table:
        reading.serve["hf_overrides"] = table


HANDLERS: Mapping[str, Handler] = {
    "quantization": _quantization, "max_model_len": _max_model_len, "lora_modules": _lora_modules,
    "eplb_config": _eplb, "limit_mm_per_prompt": _limits, "mm_processor_kwargs": _processor,
    "hf_overrides": overrides}
