"""SGLang's scheduler and cache in ksim's terms: prompts before decodes, a radix tree, CUDA graphs for decodes."""

from collections.abc import Sequence
from typing import Any

from ksim.deploy.flags.given import Given, value_of, where_of
from ksim.foundation.errors import ConfigError

#: Flags that are read together.
FLAGS = ("schedule_policy", "scheduler_recv_interval", "enable_mixed_chunk", "enable_priority_scheduling",
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
