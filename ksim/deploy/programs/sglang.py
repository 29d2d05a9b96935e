"""SGLang: `python -m sglang.launch_server`, `sglang serve`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ksim.deploy.commands import Command, Word, behind
from ksim.deploy.engines import sglang, vllm
from ksim.deploy.engines.launching import launch, model_of, model_word, release_of
from ksim.deploy.engines.vllm import with_acceptance
from ksim.deploy.flags.given import Given, Parser, flag_table, value_of
from ksim.deploy.flags.meaning import Handler, Reading, meaning, names_of, read_with_others, without_older
from ksim.deploy.launches import Launch, Note, Wanted
from ksim.deploy.proxies import with_config_file
from ksim.foundation.errors import ConfigError

__all__ = ["Sglang"]

_STARTS = (("-m", "sglang.launch_server"), ("sglang", "serve"), ("sglang.launch_server",), ("launch_server.py",))
#: Formats that SGLang names otherwise than vLLM.
_FORMATS = {"modelopt_fp8": "fp8", "w8a8_fp8": "fp8", "modelopt": "fp8", "petit_nvfp4": "nvfp4",
            "w8a8_int8": "int8_w8a8", "w4afp8": ""}
_ROLES: Mapping[Any, str] = {"prefill": "prefill", "decode": "decode"}
_TOGETHER = (*sglang.PARALLEL_FLAGS, *sglang.SCHEDULER_FLAGS, *sglang.DRAFT_FLAGS, *sglang.HICACHE_FLAGS)
_READ = ("model_path", "config", "disaggregation_mode", "disaggregation_transfer_backend", "port")


def _quantization(reading: Reading, given: Given) -> None:
    name = _FORMATS.get(str(given.value))
    if name == "":
        raise ConfigError(given.where, f"{given.said}: that format is not simulated")
    if name:
        reading.serve["quantization"] = name
    else:
        vllm.FURTHER["quantization"](reading, given)


def _adapters(reading: Reading, given: Given) -> None:
    names = [text if "=" in str(text) or str(text).startswith("{") else f"{text}={text}" for text in given.value]
    texts = [text.replace('"lora_name"', '"name"').replace('"lora_path"', '"path"') for text in names]
    reading.serve["lora_modules"] = [vllm.adapter(reading, given, text) for text in texts]
    reading.serve.setdefault("enable_lora", True)


HANDLERS: Mapping[str, Handler] = {**dict.fromkeys((*_TOGETHER, *_READ), read_with_others),
                                   "quantization": _quantization, "lora_paths": _adapters,
                                   "json_model_override_args": vllm.overrides}


class Sglang:
    """Reads the flags of SGLang's server."""

    def recognises(self, command: Command) -> bool:
        return _arguments(command) is not None

    def launch(self, command: Command, wanted: Wanted) -> Launch:
        """The engine that *command* starts; raises ConfigError for what SGLang or ksim would refuse."""
        words, older = without_older("sglang", with_config_file(command, _arguments(command) or []))
        parser = Parser(flag_table("sglang", "SGLang"), names_of("sglang"), meaning("sglang").is_idle)
        given = parser.read(words)
        model, assumed = model_of(command, wanted, model_word(parser, given, "model_path"))
        role = _ROLES.get(value_of(given, "disaggregation_mode"), "both")
        reading = Reading(meaning("sglang"), HANDLERS)
        reading.take(given)
        replicas = self._together(reading, given, role)
        with_acceptance(reading, command.where)
        return launch(command, release_of("sglang", command, wanted), model, reading, role=role,
                      replicas=0 if value_of(given, "node_rank", 0) > 0 else replicas, remarks=(*assumed, *older),
                      ports=(int(value_of(given, "port", 30000)),), hardware={"host": _host(role)})

    def _together(self, reading: Reading, given: Sequence[Given], role: str) -> int:
        """Take in the flags that depend on each other; how many copies of the engine there are."""
        parts = sglang.division(given, role)
        schedule, differs = sglang.scheduling(given, role)
        reading.serve = {**schedule, **parts.serve, **reading.serve}
        if drafts := sglang.speculation(given):
            reading.serve["speculative_config"] = drafts
        if tiers := sglang.hierarchical(given):
            reading.serve["kv_transfer_config"] = tiers
        elif role != "both":
            reading.serve["kv_transfer_config"] = {"kv_connector": "sglang"}
        notes = [*parts.remarks, *differs, *_usual(reading)]
        reading.remarks += [Note("", what, why) for what, why in notes]
        return parts.replicas


def _usual(reading: Reading) -> list[tuple[str, str]]:
    """What is different of all SGLang engines."""
    if "gpu_memory_utilization" not in reading.serve:
        return []
    return [("--mem-fraction-static", "SGLang's share is of weights and KV alone, ksim's of activations, too")]


def _arguments(command: Command) -> list[Word] | None:
    return behind(command.words, _STARTS)


def _host(role: str) -> str:
    return "sglang" if role == "both" else "sglang-disaggregated"


