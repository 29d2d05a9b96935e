"""Fleets: random scenarios with pools, of which most can run."""

from typing import Any

from hypothesis import strategies as some

from ksim.foundation import catalog
from tests.explore.strategies import Tables, entries, plugins, routers, scenarios

#: Systems with a network, and GPUs with which most pools fit beside each other.
SYSTEMS = ["hgx-h100", "hgx-h200", "hgx-a100", "hgx-b200"]
GPUS = ["h100", "h200", "a100-80g", "b200"]
#: Both names of each connector.
CONNECTORS = [name for file in catalog.names("kv.transfer.connectors")
              for name in (file, catalog.find("kv.transfer.connectors", file).alias)]
#: Engine settings that hardly any model, GPU or release of an engine refuses.
ORDINARY = {
    "tensor_parallel_size", "max_model_len", "num_gpu_blocks_override", "scheduling_policy", "admission", "eviction",
    "max_num_batched_tokens", "max_num_seqs", "enable_prefix_caching", "prefill_schedule_interval", "async_scheduling",
    "scheduler_reserve_full_isl", "kv_offloading_size", "kv_transfer_config"}


def fleets() -> Tables:
    """Tables of scenarios with pools of one role, of roles that belong together, or of any."""
    roles = some.one_of(some.just(["both"]), some.just(["both", "both"]), *[some.just(roles) for roles in (
        ["prefill", "decode"], ["prefill", "decode"], ["prefill", "both"], ["prefill", "decode", "both"],
        ["prefill", "prefill", "decode"], ["decode", "prefill"], ["prefill", "decode", "decode"])],
        some.lists(some.sampled_from(["prefill", "decode", "both"]), min_size=1, max_size=3))
    pooled = roles.flatmap(lambda names: some.tuples(*[pools(role) for role in names]))
    return some.builds(_fleet, some.one_of(scenarios(), *[scenarios().map(ordinary)] * 4), pooled, joints(), hardware())


def ordinary(scenario: dict[str, Any]) -> dict[str, Any]:
    """*scenario* without most of the keys that GPUs, models and engines refuse."""
    serve = {key: value for key, value in scenario["serve"].items() if key in ORDINARY}
    kept = {key: value for key, value in scenario.items() if key not in ("power", "detail", "ranks", "engine")}
    return kept | {"serve": serve}


def hardware() -> Tables:
    """Where the pools are, if they do not say so themselves: mostly room for all of them."""
    return some.one_of(some.just({}), some.builds(lambda system, nodes: {"system": system, "nodes": nodes},
                                                  some.sampled_from(SYSTEMS), some.sampled_from([2, 4, 8])))


def pools(role: str) -> Tables:
    own = some.one_of(some.just({}), some.just({}), some.builds(lambda gpu: {"gpu": gpu}, some.sampled_from(GPUS)),
                      some.builds(lambda system, nodes: {"system": system, "nodes": nodes},
                                  some.one_of(some.sampled_from(SYSTEMS), entries("systems")),
                                  some.sampled_from([1, 2, 4])))
    others = some.fixed_dictionaries({}, optional={"model": some.sampled_from(["qwen2.5-0.5b", "llama-3.2-3b"])})
    rest = some.fixed_dictionaries({"role": some.just(role)}, optional={
        "replicas": some.sampled_from([1, 1, 2, 3]), "host": entries("hosts"), "serve": differences()})
    return some.builds(lambda one, other, model: one | other | model, own, rest, some.one_of(some.just({}), others))


def differences() -> Tables:
    """Engine settings in which pools may differ."""
    return some.fixed_dictionaries({}, optional={
        "tensor_parallel_size": some.sampled_from([1, 2, 4, 8]), "pipeline_parallel_size": some.sampled_from([1, 2]),
        "data_parallel_size": some.sampled_from([1, 2]), "enable_expert_parallel": some.booleans(),
        "max_num_batched_tokens": some.sampled_from([64, 512, 8192]), "max_num_seqs": some.sampled_from([1, 2, 64]),
        "enable_prefix_caching": some.booleans(), "async_scheduling": some.booleans(),
        "scheduling_policy": plugins("scheduling.policies"), "admission": plugins("scheduling.admissions"),
        "enforce_eager": some.booleans(), "quantization": some.sampled_from(["auto", "fp8"]),
        "num_gpu_blocks_override": some.sampled_from([20, 70, 300]), "scheduler_reserve_full_isl": some.booleans(),
        "max_model_len": some.sampled_from([256, 1000])})


def mixed(workload: dict[str, Any], models: list[str]) -> dict[str, Any]:
    """A mix of the synthetic *workload* for each of these *models*, "" for that of the scenario."""
    parts = {f"of{place}": {"synthetic": workload["synthetic"], **({"model": model} if model else {})}
             for place, model in enumerate(models)}
    return {key: value for key, value in workload.items() if key != "synthetic"} | {"mix": parts}


def joints() -> Tables:
    """What joins pools that split requests: the connector and the pair router."""
    transfer = some.sampled_from(CONNECTORS).flatmap(lambda name: some.fixed_dictionaries(
        {"kv_connector": some.just(name)}, optional={
            "kv_connector_extra_config": options(name),
            "kv_load_failure_policy": some.sampled_from(["fail", "recompute"])}))
    offload = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": "50 MB"}}
    both = transfer.map(lambda config: {"kv_connector": "MultiConnector", "kv_connector_extra_config": {
        "connectors": [config, offload]}})
    sides = some.fixed_dictionaries({"name": some.just("each_side")}, optional={
        "prefill": routers(), "decode": routers()})
    router = some.one_of(plugins("cluster.pair_routers"), sides, some.builds(
        lambda threshold: {"name": "llm_d", "threshold": threshold}, some.sampled_from([0, 1, 100])))
    return some.fixed_dictionaries({}, optional={
        "kv_transfer_config": some.one_of(transfer, transfer, both), "pair_router": router})


def options(connector: str) -> Tables:
    """Options of a *connector* with which transfers are slow, or leases short."""
    leases = {"nixl": "kv_lease_duration", "mooncake": "abort_request_timeout"}
    own = [key for name, key in leases.items() if connector.lower().startswith(name)]
    return some.fixed_dictionaries({}, optional={
        "start": some.sampled_from([0, "5 ms", "1 s"]), "share": some.sampled_from([1.0, 0.01, 0.0001]),
        **{key: some.sampled_from(["1 ms", "50 ms", 30]) for key in own}})


def _fleet(scenario: dict[str, Any], pooled: tuple[dict[str, Any], ...], joint: dict[str, Any],
           where: dict[str, Any]) -> dict[str, Any]:
    table = {key: value for key, value in scenario.items() if not where or key not in ("gpu", "system", "nodes")}
    splits = any(pool["role"] == "prefill" for pool in pooled)
    if splits:
        table.pop("router", None)
        serve = {key: value for key, value in table["serve"].items() if not key.startswith("kv_")}
        if "kv_transfer_config" in joint:
            serve["kv_transfer_config"] = joint["kv_transfer_config"]
        table |= {"serve": serve} | ({"pair_router": joint["pair_router"]}
                                                         if "pair_router" in joint else {})
    models = {pool.get("model", "") for pool in pooled}
    if models != {""}:
        table["workload"] = mixed(table["workload"], sorted(models))
    return table | where | {"pools": {f"{pool['role']}{number}": pool for number, pool in enumerate(pooled)}}
