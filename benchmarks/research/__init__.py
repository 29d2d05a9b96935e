"""Comparisons of ksim with public tables of kernels, runs and ladders, which are not part of the package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: What is assumed about public runs and ladders: engines, recipes, loads.
RECIPES = Path(__file__).parent / "recipes"

#: Settings of SGLang's by what recipes, which name those of all engines alike, call them.
_OF_SGLANG = {"max_num_batched_tokens": "chunked_prefill_size", "max_num_seqs": "max_running_requests",
              "max_model_len": "context_length", "gpu_memory_utilization": "mem_fraction_static"}
#: Settings that recipes count by rank of data-parallel attention, and SGLang over all ranks.
_OF_ALL_RANKS = ("max_num_batched_tokens", "max_num_seqs")


def of_sglang(serve: Mapping[str, Any]) -> dict[str, Any]:
    """*serve* with the settings of its scheduler as SGLang calls and counts them."""
    ranks = serve.get("data_parallel_size", 1)
    own = {name: serve[key] * (ranks if key in _OF_ALL_RANKS else 1)
           for key, name in _OF_SGLANG.items() if key in serve}
    if not serve.get("enable_prefix_caching", True):
        own["disable_radix_cache"] = True
    if not serve.get("async_scheduling", True):
        own["disable_overlap_schedule"] = True
    dropped = (*_OF_SGLANG, "enable_prefix_caching", "enable_chunked_prefill", "async_scheduling", "prefix_cache")
    kept = {key: value for key, value in serve.items() if key not in dropped}
    return {**kept, "sglang": {**own, **serve.get("sglang", {})}}
