"""The keys of TensorRT-LLM's LLM API, from options of `trtllm-serve` and its YAML.

Keys of TensorRT-LLM's LLM API that are tables, or depend on each other.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ksim.deploy.engines.vllm import drafter
from ksim.deploy.flags.given import Given, of_kind, table_of, value_of
from ksim.deploy.flags.meaning import Handler, Reading, read_with_others
from ksim.deploy.launches import Note
from ksim.foundation.errors import ConfigError

_CACHE = {"enable_block_reuse": "enable_prefix_caching", "tokens_per_block": "block_size"}
_CACHE_IDLE = ("enable_partial_reuse", "copy_on_partial_reuse", "event_buffer_max_size", "free_gpu_memory_fraction",
               "cross_kv_cache_fraction", "secondary_offload_min_priority", "onboard_blocks",
               "attention_dp_events_gather_period_ms", "use_uvm", "mamba_ssm_cache_dtype", "use_kv_cache_manager_v2",
               "max_util_for_resume")
#: Keys that change the cache, and not ksim's.
_CACHE_DIFFERS = {"max_gpu_total_bytes": "the cache is as large as free_gpu_memory_fraction or max_tokens says",
                  "max_attention_window": "windows are those of the model's config.json",
                  "sink_token_length": "tokens that stay before a window are not simulated"}
_DRAFTS = {"MTP": "mtp", "EAGLE": "eagle3", "EAGLE3": "eagle3", "NGRAM": "ngram", "DRAFT_TARGET": "draft_model",
           "DRAFTTARGET": "draft_model"}
#: Keys of the number of drafts, by method.
_COUNTS = ("num_nextn_predict_layers", "max_draft_len")


#: Kinds of keys of the YAML alone, and of kv_cache_config, that are numbers or switches.
KINDS = {"enable_attention_dp": "switch", "disable_overlap_scheduler": "switch", "moe_tensor_parallel_size": "integer",
         "batch_wait_timeout_iters": "integer", "batch_wait_max_tokens_ratio": "number",
         "free_gpu_memory_fraction": "number", "max_tokens": "integer", "tokens_per_block": "integer",
         "host_cache_size": "integer", "enable_block_reuse": "switch"}


def read_as(kind: str, value: Any, where: str, key: str) -> Any:
    """The *value* of a *key* of the YAML; raises ConfigError for one of another *kind*."""
    try:
        return of_kind(kind, value)
    except ValueError as error:
        raise ConfigError(where, f"{key}: {error}") from None


def cache_table(given: Given) -> dict[str, Any]:
    """The keys of kv_cache_config, without those that are left empty; raises ConfigError for values that cannot be."""
    return {key: read_as(KINDS.get(key, "json"), value, given.where, f"kv_cache_config.{key}")
            for key, value in table_of(given).items() if value is not None}


def _cache(reading: Reading, given: Given) -> None:
    table = cache_table(given)
    page = table.get("tokens_per_block", 32)
    if page < 1:
        raise ConfigError(given.where, f"kv_cache_config.tokens_per_block: expected at least 1, not {page}")
    if (kind := table.pop("dtype", "auto")) not in ("auto", "fp8"):
        raise ConfigError(given.where, f"kv_cache_config.dtype {kind!r} is not simulated; ksim has auto, fp8")
    if kind == "fp8":
        reading.serve["kv_cache_dtype"] = "fp8"
    for key, value in table.items():
        if key in _CACHE:
            reading.serve[_CACHE[key]] = value
        elif key == "host_cache_size" and value:
            reading.serve["kv_offloading_size"] = value / 2**30
            reading.remarks.append(Note(given.where, key, "host memory behind the cache, by vLLM's rules"))
        elif key == "max_tokens" and value:
            reading.serve["num_gpu_blocks_override"] = value // page
        elif key in _CACHE_DIFFERS and value:
            reading.remarks.append(Note(given.where, f"kv_cache_config.{key}", _CACHE_DIFFERS[key]))
        elif key in _CACHE_IDLE or key in _CACHE_DIFFERS:
            reading.idle.append(Note(given.where, f"kv_cache_config.{key}", "changes nothing here, or is read above"))
        elif value:
            raise ConfigError(given.where, f"kv_cache_config.{key} is no key that ksim knows")


def _graphs(reading: Reading, given: Given) -> None:
    if given.value is None:
        reading.serve["cudagraph_mode"] = "NONE"
        return
    table = table_of(given)
    if table.get("batch_sizes"):
        reading.serve["cudagraph_capture_sizes"] = table["batch_sizes"]
    elif table.get("max_batch_size"):
        reading.serve["max_cudagraph_capture_size"] = table["max_batch_size"]


def _speculation(reading: Reading, given: Given) -> None:
    table = table_of(given)
    method = _DRAFTS.get(str(table.get("decoding_type", "")).upper().replace("-", "_"))
    count = next((table[key] for key in _COUNTS if table.get(key)), None)
    if method is None or count is None:
        raise ConfigError(given.where, f"speculative_config: decoding_type {table.get('decoding_type')!r} with"
                                       f" {count or 'no'} drafts is not simulated; ksim has {', '.join(_DRAFTS)}")
    config = {"method": method, "num_speculative_tokens": count}
    model = table.get("speculative_model_dir") or table.get("speculative_model")
    if model and method != "mtp":
        config["model"] = drafter(str(model), given)
    reading.serve["speculative_config"] = config


def _scheduler(reading: Reading, given: Given) -> None:
    policy = table_of(given).get("capacity_scheduler_policy", "GUARANTEED_NO_EVICT")
    if policy not in ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION"):
        raise ConfigError(given.where, f"capacity_scheduler_policy {policy!r} is not simulated; ksim has"
                                       f" GUARANTEED_NO_EVICT, MAX_UTILIZATION")
    if policy == "MAX_UTILIZATION":
        reading.serve["admission"] = "always"


def _overlap(reading: Reading, given: Given) -> None:
    if given.value:
        reading.serve["async_scheduling"] = False


def _experts(reading: Reading, given: Given) -> None:
    reading.pass_over(given, "a choice of kernels; for DeepGEMM's, --version trtllm-1.2-deepgemm")


def _lora(reading: Reading, given: Given) -> None:
    table = table_of(given)
    reading.serve["enable_lora"] = True
    for key, setting in (("max_lora_rank", "max_lora_rank"), ("max_loras", "max_loras"),
                         ("max_cpu_loras", "max_cpu_loras")):
        if table.get(key):
            reading.serve[setting] = table[key]


HANDLERS: Mapping[str, Handler] = {
    "kv_cache_config": _cache, "cuda_graph_config": _graphs, "speculative_config": _speculation,
    "scheduler_config": _scheduler, "disable_overlap_scheduler": _overlap, "moe_config": _experts, "lora_config": _lora,
    **dict.fromkeys(("tensor_parallel_size", "moe_expert_parallel_size", "enable_attention_dp", "max_beam_width",
                     "free_gpu_memory_fraction", "extra_llm_api_options", "server_role", "cache_transceiver_config",
                     "batch_wait_timeout_iters", "batch_wait_max_tokens_ratio",
                     "moe_tensor_parallel_size"), read_with_others)}
#: Keys that are of the YAML alone.
TABLES = tuple(key for key in HANDLERS if key.endswith("_config"))


def division(given: Sequence[Given]) -> dict[str, Any]:
    """How the GPUs share the work: with data-parallel attention, each holds the attention of its own requests."""
    size, experts = value_of(given, "tensor_parallel_size", 1), value_of(given, "moe_expert_parallel_size")
    key = "data_parallel_size" if value_of(given, "enable_attention_dp") else "tensor_parallel_size"
    whole = bool(experts and experts > 1)
    return {**({key: size} if size != 1 else {}), **({"enable_expert_parallel": True} if whole else {}),
            **({"expert_parallel_size": experts} if whole and experts != size else {})}


def waiting(given: Sequence[Given]) -> dict[str, Any]:
    """The policy under which prompts wait until they fill a step."""
    rounds, ratio = value_of(given, "batch_wait_timeout_iters", 0), value_of(given, "batch_wait_max_tokens_ratio", 0)
    if not rounds or not ratio:
        return {}
    budget = value_of(given, "max_num_tokens", 8192)
    return {"scheduling_policy": {"name": "batch_wait", "budget": budget, "ratio": ratio, "iterations": rounds}}


def fit_prompts(reading: Reading, context: int) -> None:
    """Let a step take the longest prompt where prompts are not cut; the model has a *context* of so many tokens.

    TensorRT-LLM refuses prompts above max_num_tokens then, and ksim has one limit, of prompt and output together.
    """
    serve = reading.serve
    step, longest = serve.get("max_num_batched_tokens", 8192), serve.get("max_model_len")
    if serve.get("enable_chunked_prefill") or (longest or context) <= step:
        return
    if longest is None:
        serve["max_model_len"] = step
        why = f"without chunked context no prompt above {step} tokens is served: requests are limited to as many"
        reading.remarks.append(Note("", "max_seq_len", why))
    else:
        serve["max_num_batched_tokens"] = longest
        why = f"raised from {step} to max_seq_len: without chunked context, ksim's steps take the longest request"
        reading.remarks.append(Note("", "max_num_tokens", why))
