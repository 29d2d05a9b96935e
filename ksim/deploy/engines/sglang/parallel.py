"""How SGLang divides a model: `--tp-size` counts all GPUs, of which data-parallel attention makes groups."""

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from ksim.deploy.flags.given import Given, value_of, where_of
from ksim.foundation.errors import ConfigError

#: Flags that are read together.
FLAGS = ("tp_size", "dp_size", "attn_dp_size", "enable_dp_attention", "ep_size", "moe_a2a_backend", "deepep_mode",
         "max_running_requests", "chunked_prefill_size", "max_total_tokens", "nnodes", "node_rank")
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
