"""Engines of a tiny model that offload, and what may come to them."""

from typing import Any

from hypothesis import strategies as st

from tests.laws.tiny import uniform

MULTI_TIER = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs", "root_dir": "/kv"}]}


def requests(count: int = 20, rate: float = 500, prompt: Any = None, output: Any = None, **more: Any) -> dict[str, Any]:
    """A workload of random requests, most of which begin like others."""
    return {"synthetic": {
        "arrivals": {"process": "poisson", "rate": rate}, "prompt": prompt or uniform(20, 150),
        "output": output or uniform(1, 30), "count": count, "max_tokens": 250, **more}}


def scenario(model: str, blocks: float = 200, workload: dict[str, Any] | None = None, seed: int = 1,
             pools: dict[str, Any] | None = None, options: dict[str, Any] | None = None, **serve: Any
             ) -> dict[str, Any]:
    """A scenario whose engines have room for so many KV *blocks* in host memory; *options* are the connector's."""
    offload = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {
        "cpu_bytes_to_use": blocks * BLOCK, **(options or {})}}
    if pools and any(pool["role"] == "prefill" for pool in pools.values()):
        offload = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {
            "connectors": [{"kv_connector": "NixlConnector"}, offload]}}
    return {
        "model": model, "gpu": "h200", "oracle": "roofline", "seed": seed, "nodes": 1,
        **({"pools": pools} if pools else {}), "workload": workload or requests(sessions=SESSIONS),
        "serve": {"max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 8,
                  "num_gpu_blocks_override": 40, "kv_transfer_config": offload, **serve}}


#: The bytes of a block of the tiny model in host memory.
BLOCK = 8192
SESSIONS = {"turns": uniform(1, 4), "think": uniform("0 s", "0.1 s")}


def turns(low: int, high: int, think: str) -> dict[str, Any]:
    """Conversations of so many turns, between which users think for so long."""
    return {"turns": uniform(low, high), "think": {"kind": "fixed", "value": think}}


workloads = st.builds(
    requests, st.integers(1, 25), st.sampled_from([20, 100, 500, 5000]),
    st.sampled_from([uniform(20, 150), uniform(1, 40)]), st.sampled_from([uniform(1, 10), uniform(20, 90)]))
extras = st.fixed_dictionaries({}, optional={
    "sessions": st.just(SESSIONS), "prefixes": st.just({"groups": 2, "tokens": 40})})
serves = st.fixed_dictionaries({
    "async_scheduling": st.booleans(), "enable_prefix_caching": st.sampled_from([True, True, False]),
    "max_num_seqs": st.sampled_from([2, 8, 32]), "max_num_batched_tokens": st.sampled_from([32, 256]),
    "num_gpu_blocks_override": st.sampled_from([20, 40, 500]), "tensor_parallel_size": st.sampled_from([1, 1, 2])})
choices = st.fixed_dictionaries({}, optional={
    "blocks_per_chunk": st.sampled_from([1, 2]), "eviction_policy": st.sampled_from(["lru", "arc"]),
    "offload_prompt_only": st.booleans()})
tiers = st.sampled_from([{}, {}, {"store_threshold": 2}, MULTI_TIER])
SPLIT = {"prefill": {"role": "prefill"}, "decode": {"role": "decode"}}
fleets = st.sampled_from([None, None, SPLIT, {"all": {"role": "both", "replicas": 2}}])


@st.composite
def offloading(draw: st.DrawFn, model: str) -> dict[str, Any]:
    """A scenario of engines that offload."""
    workload = draw(workloads)
    workload["synthetic"] |= draw(extras)
    return scenario(model, draw(st.sampled_from([2, 20, 200])), workload, draw(st.integers(0, 1000)), draw(fleets),
                    {**draw(choices), **draw(tiers)}, **draw(serves))
