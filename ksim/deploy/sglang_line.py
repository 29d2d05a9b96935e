"""Engine settings as flags of SGLang's server, and those for which it has no flag."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from attrs import fields_dict, frozen

from ksim.deploy.vllm_line import WrittenFlag, drafter_name, line_text, served_name, shown
from ksim.foundation.config import plain
from ksim.scenario.sglang import VLLM_KEYS
from ksim.specs.settings import EngineSettings
from ksim.specs.sglang import SglangSettings

__all__ = ["SglangLine"]

_START = ("python", "-m", "sglang.launch_server", "--model-path")
#: Formats of weights that SGLang makes of a checkpoint, or takes by their name; others are those of the checkpoint.
_QUANTIZATIONS = {"fp8": "fp8", "nvfp4": "modelopt_fp4", "modelopt_fp4": "modelopt_fp4", "mxfp4": "mxfp4",
                  "bitsandbytes": "bitsandbytes", "int8_w8a8": "w8a8_int8"}
_CACHES = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "bfloat16": "bfloat16"}
#: Settings with a flag of another name and the same values.
_RENAMED = {
    "pipeline_parallel_size": "pp-size", "num_redundant_experts": "ep-num-redundant-experts",
    "max_loras": "max-loras-per-batch", "max_cpu_loras": "max-loaded-loras", "max_lora_rank": "max-lora-rank",
    "lora_target_modules": "lora-target-modules", "enforce_eager": "disable-cuda-graph",
    "enable_dbo": "enable-two-batch-overlap", "fuse_allreduce_rms": "enable-flashinfer-allreduce-fusion",
    "mamba_ssm_cache_dtype": "mamba-ssm-dtype", "language_model_only": "language-model-only",
    "enable_eplb": "enable-eplb", "enable_lora": "enable-lora", "hf_overrides": "json-model-override-args",
    "enable_single_batch_overlap": "enable-single-batch-overlap",
}
#: Algorithms by the methods that they are in vLLM.
_ALGORITHMS = {"eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "NEXTN", "draft_model": "STANDALONE", "ngram": "NGRAM"}
_MODES = {"kv_producer": "prefill", "kv_consumer": "decode"}
#: Settings that other flags say, or that follow from those of SGLang's scheduler.
_ELSEWHERE = frozenset({
    *VLLM_KEYS, "sglang", "tensor_parallel_size", "data_parallel_size", "expert_parallel_size", "all2all_backend",
    "enable_expert_parallel", "dbo_decode_token_threshold", "dbo_prefill_token_threshold", "eplb_window_size",
    "eplb_step_interval", "fi_allreduce_fusion_max_size_mb"}) - {"scheduling_policy", "admission"}


@frozen
class SglangLine:
    """The line that starts a pool's engine, and remarks on the settings that it lacks."""

    model: str
    flags: tuple[WrittenFlag, ...]
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: str, settings: EngineSettings) -> "SglangLine":
        """The line with every setting that is not at its default."""
        serve, usual = plain(settings), plain(EngineSettings())
        given = {key: value for key, value in serve.items() if value != usual.get(key) and key not in _ELSEWHERE}
        flags, missing = [*_parallel(settings), *_scheduling(settings.sglang)], list[str]()
        for key, value in given.items():
            flag = _SPECIAL.get(key, _plain)(key, value, settings)
            if isinstance(flag, str):
                missing.append(f"serve.{key} = {shown(value)}: {flag}")
            else:
                flags += flag
        return cls(served_name(model), tuple(flags), tuple(missing))

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command."""
        return (*_START, self.model, *(word for flag in self.flags for word in flag.words))

    def text(self, *more: WrittenFlag) -> str:
        """The line for a shell, a flag a line."""
        return line_text((*_START, self.model), (*self.flags, *more))


def _flag(name: str, *values: Any) -> WrittenFlag:
    return WrittenFlag(f"--{name}", tuple(str(value) for value in values))


def _parallel(settings: EngineSettings) -> list[WrittenFlag]:
    """How the GPUs share the work: attention in groups, and experts."""
    groups = settings.data_parallel_size
    gpus = settings.tensor_parallel_size * groups
    flags = [_flag("tp-size", gpus)] if gpus > 1 else []
    if groups > 1:
        flags += [_flag("dp-size", groups), _flag("enable-dp-attention")]
    if not settings.enable_expert_parallel:
        return flags
    if "deepep" in settings.all2all_backend:
        mode = "low_latency" if settings.all2all_backend == "deepep_low_latency" else "normal"
        flags += [_flag("moe-a2a-backend", "deepep"), _flag("deepep-mode", mode)]
    else:
        flags.append(_flag("ep-size", settings.expert_parallel_size or gpus))
    if settings.enable_eplb:
        flags.append(_flag("eplb-rebalance-num-iterations", settings.eplb_step_interval))
    return flags


def _scheduling(given: SglangSettings | None) -> list[WrittenFlag]:
    """Settings of the scheduler, which are called as their flags."""
    flags, usual = [], SglangSettings()
    for key in fields_dict(SglangSettings):
        value = getattr(given or usual, key)
        if value is None or value == getattr(usual, key) or value is False:
            continue
        flags.append(_flag(key.replace("_", "-"), *([] if value is True else [value])))
    return flags


def _plain(key: str, value: Any, settings: EngineSettings) -> list[WrittenFlag] | str:
    if key not in _RENAMED:
        return "SGLang has no such flag"
    if isinstance(value, bool):
        return [_flag(_RENAMED[key])] if value else []
    if isinstance(value, Mapping):
        return [_flag(_RENAMED[key], json.dumps(value))]
    return [_flag(_RENAMED[key], *(value if isinstance(value, list) else [value]))]


def _quantization(key: str, value: str, settings: EngineSettings) -> list[WrittenFlag] | str:
    if value in _QUANTIZATIONS:
        return [_flag("quantization", _QUANTIZATIONS[value])]
    return "SGLang takes the format of the checkpoint: serve one in this format"


def _cache(key: str, value: str, settings: EngineSettings) -> list[WrittenFlag] | str:
    return [_flag("kv-cache-dtype", _CACHES[value])] if value in _CACHES else "SGLang has no such format"


def _graphs(key: str, value: Any, settings: EngineSettings) -> list[WrittenFlag] | str:
    """Graphs by sequences, each of as many tokens as are verified."""
    width = 1 + settings.drafted
    if key == "max_cudagraph_capture_size":
        return [_flag("cuda-graph-max-bs", max(1, value // width))]
    if key == "cudagraph_capture_sizes":
        return [_flag("cuda-graph-bs", *(max(1, size // width) for size in value))]
    if value == "NONE":
        return [] if settings.enforce_eager else [_flag("disable-decode-cuda-graph")]
    if value == "FULL_DECODE_ONLY":
        return [_flag("disable-prefill-cuda-graph")]
    return [] if value == "FULL_AND_PIECEWISE" else "SGLang captures whole graphs of decodes, and others of prompts"


def _speculation(key: str, value: Mapping[str, Any], settings: EngineSettings) -> list[WrittenFlag] | str:
    """Chains of drafts; how many are accepted depends on the texts."""
    method, tokens = str(value.get("method")), int(value["num_speculative_tokens"])
    if method not in _ALGORITHMS:
        return "SGLang has no such drafter"
    flags = [_flag("speculative-algorithm", _ALGORITHMS[method])]
    if isinstance(value.get("model"), str):
        flags.append(_flag("speculative-draft-model-path", drafter_name(value["model"])))
    if method == "ngram":
        return [*flags, _flag("speculative-num-draft-tokens", tokens)]
    return [*flags, _flag("speculative-num-steps", tokens), _flag("speculative-eagle-topk", 1),
            _flag("speculative-num-draft-tokens", tokens + 1)]


def _transfer(key: str, value: Mapping[str, Any], settings: EngineSettings) -> list[WrittenFlag] | str:
    """The side of a server that prefills or decodes for others, or the tiers of a hierarchical cache."""
    if value.get("kv_connector") == "HiCache":
        options = value.get("kv_connector_extra_config", {})
        named = {name: option for name, option in options.items() if name != "page_size"}
        return [_flag("enable-hierarchical-cache"), *(
            _flag(name.replace("_", "-"), json.dumps(option) if isinstance(option, Mapping) else option)
            for name, option in named.items())]
    mode = _MODES.get(str(value.get("kv_role")))
    return [_flag("disaggregation-mode", mode)] if mode else "SGLang has no such connector"


def _adapters(key: str, value: list[Mapping[str, Any]], settings: EngineSettings) -> list[WrittenFlag] | str:
    names = [f"{module['name']}-{number}" if "count" in module else module["name"]
             for module in value for number in range(module.get("count") or 1)]
    return [_flag("lora-paths", *(f"{name}={name}" for name in names))]


_SPECIAL: Mapping[str, Callable[[str, Any, EngineSettings], list[WrittenFlag] | str]] = {
    "quantization": _quantization, "kv_cache_dtype": _cache, "speculative_config": _speculation,
    "kv_transfer_config": _transfer, "lora_modules": _adapters,
    **dict.fromkeys(("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size"), _graphs),
}
