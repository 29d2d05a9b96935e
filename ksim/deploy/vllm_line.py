"""Engine settings as flags of `vllm serve`, and those for which vLLM has no flag."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import fields_dict, frozen

from ksim.foundation import catalog
from ksim.foundation.config import plain
from ksim.specs.configs import KvTransferConfig, SpeculativeConfig
from ksim.specs.settings import EngineSettings

__all__ = ["EPLB", "WrittenFlag", "VllmLine", "drafter_name", "line_text", "served_name", "shown"]


#: Formats of weights that vLLM makes of a checkpoint, or takes by their name; others are those of the checkpoint.
_QUANTIZATIONS = {"fp8": "fp8", "modelopt_fp4": "modelopt_fp4", "mxfp4": "mxfp4", "nvfp4": "modelopt_fp4",
                  "bitsandbytes": "bitsandbytes"}
_KSIM = "vLLM has no such setting"
#: Settings that are keys of `compilation_config`, and of its `pass_config`.
_COMPILED = {"cudagraph_mode": "cudagraph_mode"}
_PASSES = {"fuse_allreduce_rms": "fuse_allreduce_rms",
           "fi_allreduce_fusion_max_size_mb": "fi_allreduce_fusion_max_size_mb"}
#: Settings by the keys of `--eplb-config`.
EPLB = {"num_redundant_experts": "num_redundant_experts", "window_size": "eplb_window_size",
        "step_interval": "eplb_step_interval"}
#: Settings without a flag, and why.
_WITHOUT = {
    **dict.fromkeys(("admission", "sglang", "prefix_cache", "eviction", "overlap_stages", "overlap_sms"), _KSIM),
    "unquantized": "the checkpoint says which parts are in BF16",
    "expert_parallel_size": "in vLLM, all GPUs share the experts, or none do",
    "dbo_comm_sms": "it is the environment variable VLLM_DBO_COMM_SMS",
    "usage_context": "`vllm serve` is an openai_api_server",
}
#: Settings of speculative decoding that in vLLM the texts decide.
_TEXTS = ("acceptance", "match_rate")


@frozen
class WrittenFlag:
    """A flag and its values."""

    name: str
    values: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        return (self.name, *self.values)

    @property
    def text(self) -> str:
        return shlex.join(self.words)


@frozen
class VllmLine:
    """The line that starts a pool's engine, and remarks on the settings that it lacks."""

    model: str
    flags: tuple[WrittenFlag, ...]
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: str, settings: EngineSettings) -> "VllmLine":
        """The line with every setting that is not at its default."""
        serve, usual = plain(settings), plain(EngineSettings())
        given = {key: value for key, value in serve.items() if value != usual.get(key)}
        flags: list[WrittenFlag] = []
        missing: list[str] = []
        for key, value in given.items():
            flag = _SPECIAL.get(key, _plain)(key, value)
            if isinstance(flag, str):
                missing.append(f"serve.{key} = {shown(value)}: {flag}")
            else:
                flags += flag
            missing += _partly(key, value)
        return cls(served_name(model), (*flags, *_compilation(given), *_placement(given)), tuple(missing))

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command."""
        return ("vllm", "serve", self.model, *(word for flag in self.flags for word in flag.words))

    def text(self, *more: WrittenFlag) -> str:
        """The line for a shell, a flag a line."""
        return line_text(("vllm", "serve", self.model), (*self.flags, *more))


def line_text(start: Sequence[str], flags: Sequence[WrittenFlag]) -> str:
    """A command for a shell that *start*s with these words, a flag a line."""
    return " \\\n    ".join([shlex.join(start), *(flag.text for flag in flags)])


def served_name(model: str) -> str:
    """What Hugging Face calls a model of the catalogue; a path stays, and a config.json stands for its folder."""
    if model in catalog.entries("models"):
        return str(catalog.load("models", model).get("_name_or_path") or model)
    return model.removesuffix("/config.json")


def _plain(key: str, value: Any) -> list[WrittenFlag] | str:
    """The flag that is called as the setting is."""
    if key in _WITHOUT:
        return _WITHOUT[key]
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return [WrittenFlag(f"--{name}" if value else f"--no-{name}")]
    if isinstance(value, list):
        return [WrittenFlag(f"--{name}", tuple(str(item) for item in value))]
    if isinstance(value, Mapping):
        return [WrittenFlag(f"--{name}", (_json(value),))]
    return [WrittenFlag(f"--{name}", (str(value),))]


def _policy(key: str, value: Any) -> list[WrittenFlag] | str:
    name = value if isinstance(value, str) else value["name"]
    return _plain(key, name) if name in ("fcfs", "priority") else "vLLM has fcfs and priority"


def _quantization(key: str, value: str) -> list[WrittenFlag] | str:
    if value in _QUANTIZATIONS:
        return [WrittenFlag("--quantization", (_QUANTIZATIONS[value],))]
    return "vLLM takes the format of the checkpoint: serve one in this format"


def _transfer(key: str, value: Mapping[str, Any]) -> list[WrittenFlag]:
    table = _set(value, KvTransferConfig(), keep=("kv_connector", "kv_role"))
    return [WrittenFlag("--kv-transfer-config", (_json(table),))]


def _speculation(key: str, value: Mapping[str, Any]) -> list[WrittenFlag] | str:
    """The flag without `acceptance`: in vLLM, how many drafts are accepted depends on the texts."""
    known = {name: inner for name, inner in value.items() if inner is not None and name not in _TEXTS}
    defaults = {name: field.default for name, field in fields_dict(SpeculativeConfig).items()}
    said = {name: inner for name, inner in known.items() if inner != defaults.get(name)}
    if isinstance(said.get("model"), str):
        said["model"] = drafter_name(said["model"])
    return [WrittenFlag("--speculative-config", (_json(said),))]


def drafter_name(model: str) -> str:
    """What Hugging Face calls a drafter of the catalogue, or a model that drafts."""
    if model in catalog.entries("drafters"):
        return str(catalog.load("drafters", model).get("_name_or_path") or model)
    return served_name(model)


def _adapters(key: str, value: list[Mapping[str, Any]]) -> list[WrittenFlag] | str:
    names = [f"{module['name']}-{number}" if "count" in module else module["name"]
             for module in value for number in range(module.get("count") or 1)]
    return [WrittenFlag("--lora-modules", tuple(_json({"name": name, "path": name}) for name in names))]


def _partly(key: str, value: Any) -> list[str]:
    """What the flag of a setting leaves out of it."""
    if key == "lora_modules":
        return ["serve.lora_modules: put the adapters' paths in place of their names; vLLM reads the rank and modules"
                " of each from its adapter_config.json"]
    if key == "speculative_config" and (own := [name for name in _TEXTS if name in value]):
        usual = {"match_rate": 1.0}
        return [f"serve.speculative_config.{name} = {shown(value[name])}: in vLLM it depends on the texts"
                for name in own if value[name] != usual.get(name)]
    return []


def _later(key: str, value: Any) -> list[WrittenFlag]:
    """None of its own: a part of another flag."""
    return []


_SPECIAL: Mapping[str, Callable[[str, Any], list[WrittenFlag] | str]] = {
    "scheduling_policy": _policy, "quantization": _quantization, "kv_transfer_config": _transfer,
    "speculative_config": _speculation, "lora_modules": _adapters,
    **dict.fromkeys((*_COMPILED, *_PASSES, *EPLB.values()), _later),
}


def _compilation(given: Mapping[str, Any]) -> list[WrittenFlag]:
    config = {name: given[key] for key, name in _COMPILED.items() if key in given}
    if passes := {name: given[key] for key, name in _PASSES.items() if key in given}:
        config["pass_config"] = passes
    return [WrittenFlag("--compilation-config", (_json(config),))] if config else []


def _placement(given: Mapping[str, Any]) -> list[WrittenFlag]:
    table = {key: given[setting] for key, setting in EPLB.items() if setting in given}
    return [WrittenFlag("--eplb-config", (_json(table),))] if table else []


def _set(value: Mapping[str, Any], usual: Any, keep: tuple[str, ...]) -> dict[str, Any]:
    """The keys of *value* that are not at their defaults, and those to *keep*."""
    defaults = plain(usual)
    return {key: inner for key, inner in value.items() if key in keep or inner != defaults.get(key)}


def _json(value: Any) -> str:
    return json.dumps(value)


def shown(value: Any) -> str:
    """*value* for a message, not too long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
