"""The flags of SGLang's server that depend on each other: parallelism, the scheduler, speculation, the cache.

SGLang's HiCache: host memory behind the tree, as the connector of that name has it.

How SGLang divides a model: `--tp-size` counts all GPUs, of which data-parallel attention makes groups.

SGLang's scheduler and cache in ksim's terms: prompts before decodes, a radix tree, CUDA graphs for decodes.

SGLang's flags of speculative decoding as vLLM's table.
"""

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from ksim.deploy.engines.vllm import drafter
from ksim.deploy.flags.given import Given, value_of, where_of
from ksim.foundation.errors import ConfigError

#: Keys of ksim's connector, which are the flags' names.
_KEYS = ("hicache_ratio", "hicache_size", "hicache_write_policy", "hicache_io_backend", "hicache_mem_layout",
         "hicache_storage_backend", "hicache_storage_prefetch_policy", "hicache_storage_backend_extra_config")
#: Flags that are read together.
HICACHE_FLAGS = (*_KEYS, "enable_hierarchical_cache", "hicache_host_memory_mode", "hicache_host_memory_fraction",
                 "hicache_storage_prefetch_retry_poll_interval", "hicache_storage_prefetch_retry_max_attempts")


def hierarchical(given: Sequence[Given]) -> dict[str, Any]:
    """The connector that `--enable-hierarchical-cache` stands for; empty without it."""
    if not value_of(given, "enable_hierarchical_cache"):
        return {}
    options = {key: value for key in _KEYS if (value := value_of(given, key)) is not None}
    if "hicache_storage_backend" in options and (page := value_of(given, "page_size")):
        options["page_size"] = page
    return {"kv_connector": "HiCache", "kv_role": "kv_both", "kv_connector_extra_config": options}


#: Flags that are read together.
PARALLEL_FLAGS = ("tp_size", "dp_size", "attn_dp_size", "enable_dp_attention", "ep_size", "moe_a2a_backend",
                  "deepep_mode", "max_running_requests", "chunked_prefill_size", "max_total_tokens", "nnodes",
                  "node_rank")
#: Exchanges of tokens that DeepEP's kernels stand for.
_LIKE_DEEPEP = ("deepep", "deepep_v2", "mooncake", "nixl", "pplx", "megamoe")


@frozen
class Division:
    """How the GPUs of one engine share the work."""

    serve: dict[str, Any]
    replicas: int
    remarks: tuple[tuple[str, str], ...]


def division(given: Sequence[Given], role: str) -> Division:
    """What the flags of parallelism say; raises ConfigError where groups do not come out even."""
    tp, dp = value_of(given, "tp_size", 1), value_of(given, "dp_size", 1)
    attention = value_of(given, "attn_dp_size", 1)
    groups = dp if value_of(given, "enable_dp_attention") else attention
    if groups < 1 or tp % groups:
        where = where_of(given, "dp_size", where_of(given, "attn_dp_size"))
        raise ConfigError(where, f"{groups} groups of data-parallel attention do not divide {tp} GPUs")
    replicas = 1 if value_of(given, "enable_dp_attention") else dp
    serve: dict[str, Any] = {"tensor_parallel_size": tp // groups, "data_parallel_size": groups}
    serve = {key: value for key, value in serve.items() if value != 1}
    experts, remarks = _experts(given, tp, groups, role)
    return Division({**serve, **experts, **_shares(given, groups)}, replicas, remarks)


def _experts(given: Sequence[Given], tp: int, groups: int,
             role: str) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    backend, size = value_of(given, "moe_a2a_backend", "none"), value_of(given, "ep_size", 1)
    if backend in _LIKE_DEEPEP:
        mode = value_of(given, "deepep_mode", "auto")
        fast = mode == "low_latency" or (mode == "auto" and role == "decode")
        kind = {"all2all_backend": f"deepep_{'low_latency' if fast else 'high_throughput'}"} if groups > 1 else {}
        said = (f"--moe-a2a-backend {backend}",
                f"DeepEP's kernels for {'few' if fast else 'many'} tokens, and one GPU a group of experts")
        return {"enable_expert_parallel": True, **kind}, (said,)
    if size == 1:
        return {}, ()
    return {"enable_expert_parallel": True, **({"expert_parallel_size": size} if size != tp else {})}, ()


def _shares(given: Sequence[Given], groups: int) -> dict[str, Any]:
    """Limits that the groups of data-parallel attention share."""
    serve: dict[str, Any] = {}
    if (most := value_of(given, "max_running_requests")) is not None:
        serve["max_num_seqs"] = max(1, most // groups)
    if (chunk := value_of(given, "chunked_prefill_size")) is not None:
        serve |= {"max_num_batched_tokens": max(1, chunk // groups)} if chunk > 0 else {"enable_chunked_prefill": False}
    if (tokens := value_of(given, "max_total_tokens")) is not None:
        serve["num_gpu_blocks_override"] = tokens // (value_of(given, "page_size") or 1)
    return serve


#: Flags that are read together.
SCHEDULER_FLAGS = ("schedule_policy", "scheduler_recv_interval", "enable_mixed_chunk", "enable_priority_scheduling",
                   "disable_radix_cache", "disable_overlap_schedule", "disable_cuda_graph", "disable_decode_cuda_graph",
                   "cuda_graph_backend_decode", "cuda_graph_backend_prefill")
#: Policies by ksim's names; SGLang computes prompts before it goes on with decodes.
_POLICIES: dict[str, Any] = {"fcfs": "prefill_first", "lpm": "longest_prefix_first", "priority": "priority"}


def scheduling(given: Sequence[Given], role: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The settings of SGLang's scheduler, and what differs; raises ConfigError for a policy that ksim lacks."""
    serve: dict[str, Any] = {"admission": "future_memory"}
    policy, remarks = _policy(given)
    serve["scheduling_policy"] = policy
    if value_of(given, "disable_radix_cache"):
        serve["enable_prefix_caching"] = False
    else:
        serve["prefix_cache"] = "sglang"
    if value_of(given, "disable_overlap_schedule"):
        serve["async_scheduling"] = False
    return {**serve, **_graphs(given, role)}, remarks


def _policy(given: Sequence[Given]) -> tuple[Any, list[tuple[str, str]]]:
    name = value_of(given, "schedule_policy", "fcfs")
    if name not in _POLICIES:
        raise ConfigError(where_of(given, "schedule_policy"),
                          f"--schedule-policy {name} is not simulated; ksim has {', '.join(_POLICIES)}")
    if value_of(given, "enable_priority_scheduling"):
        return "priority", [("--enable-priority-scheduling", "vLLM's order by priority, which mixes prompts with"
                                                             " decodes")]
    interval = value_of(given, "scheduler_recv_interval", 1)
    if value_of(given, "enable_mixed_chunk"):
        return "decode_first", [("--enable-mixed-chunk", "decodes, and as much of prompts as the step has room for")]
    if name == "fcfs" and interval > 1:
        return {"name": "polled_prefill", "interval": interval}, []
    mixes = ("--schedule-policy lpm", "ksim's longest_prefix_first mixes prompts with decodes")
    return _POLICIES[name], [mixes] if name == "lpm" else []


def _graphs(given: Sequence[Given], role: str) -> dict[str, Any]:
    if value_of(given, "disable_cuda_graph") or value_of(given, "disable_decode_cuda_graph") or (
            value_of(given, "cuda_graph_backend_decode") == "disabled"):
        return {"cudagraph_mode": "NONE"}
    return {"cudagraph_mode": "NONE" if role == "prefill" else "FULL_DECODE_ONLY"}


#: Flags that are read together.
DRAFT_FLAGS = ("speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps",
               "speculative_eagle_topk", "speculative_num_draft_tokens", "speculative_draft_model_quantization",
               "speculative_draft_kv_cache_dtype")
_METHODS = {"EAGLE": "eagle", "EAGLE3": "eagle3", "NEXTN": "mtp", "STANDALONE": "draft_model", "NGRAM": "ngram"}
#: Drafts that SGLang chooses for models with heads of their own where no flag says it (server_args.py).
_STEPS = 3


def speculation(given: Sequence[Given]) -> dict[str, Any]:
    """The table of drafts; empty without any.  Raises ConfigError for algorithms and trees that are not simulated."""
    by_flag = {one.dest: one for one in given}
    algorithm = by_flag.get("speculative_algorithm")
    if algorithm is None or str(algorithm.value).lower() == "none":
        return {}
    if str(algorithm.value).upper() not in _METHODS:
        raise ConfigError(algorithm.where, f"{algorithm.said} is not simulated; ksim has {', '.join(_METHODS)}")
    _check_chain(by_flag.get("speculative_eagle_topk"))
    method = _METHODS[str(algorithm.value).upper()]
    draft = by_flag.get("speculative_draft_model_path")
    if method == "eagle" and draft is None:
        method = "mtp"
    table: dict[str, Any] = {"method": method, "num_speculative_tokens": _tokens(given, method)}
    if draft is not None and method != "mtp":
        table["model"] = drafter(str(draft.value), draft)
    return table


def _tokens(given: Sequence[Given], method: str) -> int:
    drafted = value_of(given, "speculative_num_draft_tokens")
    steps = value_of(given, "speculative_num_steps")
    if method == "ngram":
        return int(drafted or 12)
    return int(steps or (drafted - 1 if drafted and drafted > 1 else _STEPS))


def _check_chain(topk: Given | None) -> None:
    if topk is not None and topk.value > 1:
        raise ConfigError(topk.where, f"{topk.said}: trees of drafts are not simulated; chains are,"
                                      f" --speculative-eagle-topk 1")
