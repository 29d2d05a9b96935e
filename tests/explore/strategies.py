"""Scenarios over all keys, valid or not, with loads that take a moment."""

from functools import reduce
from operator import or_
from typing import Any

from hypothesis import strategies as some

from ksim.foundation import catalog
from ksim.scenario.hardware import engine_of
from ksim.specs.settings import CUDAGRAPH_MODES, EXCHANGES
from ksim.specs.shard import PARTS, QUANTIZATIONS
from tests.explore.features import as_sglang_says

Tables = some.SearchStrategy[dict[str, Any]]
LLM_D_PARTS = "cluster.llm_d.parts"
SMALL = ["llama-3.2-1b", "qwen3-0.6b", "qwen3-4b", "gemma-2-2b", "gpt-oss-20b", "qwen3-30b-a3b", "llama-3.1-8b"]


def plugins(folder: str) -> some.SearchStrategy[str]:
    return some.sampled_from(catalog.names(folder))


def entries(folder: str) -> some.SearchStrategy[str]:
    return some.sampled_from(catalog.entries(folder))


def amounts(least: int, most: int, unit: str = "") -> Tables:
    """Distributions between about these."""
    def told(number: float) -> Any:
        return f"{number} {unit}" if unit else number

    number = some.integers(least, most).map(told)
    between = some.tuples(some.integers(least, most), some.integers(least, most)).map(sorted)
    return some.one_of(
        some.builds(lambda value: {"kind": "fixed", "value": value}, number),
        some.builds(lambda ends: {"kind": "uniform", "low": told(ends[0]), "high": told(ends[1])}, between),
        some.builds(lambda mean: {"kind": "exponential", "mean": mean}, some.integers(max(1, least), most).map(told)),
        some.builds(lambda mean, sigma: {"kind": "lognormal", "mean": mean, "sigma": sigma},
                    some.integers(max(1, least), most).map(told), some.floats(0, 2)))


def arrivals() -> Tables:
    rate = some.floats(0.1, 1000)
    return some.one_of(
        some.just({"process": "burst"}),
        some.fixed_dictionaries({"process": some.sampled_from(["poisson", "constant"]), "rate": rate},
                                optional={"exact": some.booleans()}),
        some.fixed_dictionaries({"process": some.just("gamma"), "rate": rate, "burstiness": some.floats(0.01, 10)}))


def workloads() -> Tables:
    def possible(table: dict[str, Any]) -> dict[str, Any]:
        if "sessions" in table:  # the number of which is not known before, so that their arrivals cannot be exact
            table["arrivals"].pop("exact", None)
        return table

    synthetic = some.fixed_dictionaries(
        {"count": some.integers(1, 30), "arrivals": arrivals(), "prompt": amounts(1, 600), "output": amounts(1, 40)},
        optional={
            "sessions": some.fixed_dictionaries({"turns": amounts(1, 3)}, optional={"think": amounts(0, 2, "s")}),
            "prefixes": some.fixed_dictionaries({"groups": some.integers(1, 3), "tokens": some.integers(1, 300)}),
            "priorities": some.lists(some.integers(-3, 3), max_size=3),
            "tenants": some.dictionaries(some.sampled_from("abc"), some.floats(0.1, 10), max_size=3),
            "max_tokens": some.integers(2, 800), "chunk_tokens": some.sampled_from([1, 16, 30, 512])})
    return some.fixed_dictionaries({"synthetic": synthetic.map(possible)},
                                   optional={"max_concurrency": some.integers(1, 5), "retries": retries()})


def settings() -> Tables:
    powers = some.sampled_from([1, 1, 1, 2, 4, 8])
    # Few blocks, so that requests are preempted and prefixes evicted.
    length = some.sampled_from([40, 256, 1000, 4096])
    scarce = some.builds(lambda length, times: {"max_model_len": length, "num_gpu_blocks_override": int(
        length * times / 16) + 2}, length, some.floats(0.5, 3))
    room = some.one_of(scarce, some.builds(lambda length: {"max_model_len": length}, length))
    return some.builds(lambda one, other: one | other, room, _others(powers))


def _others(powers: some.SearchStrategy[int]) -> Tables:
    return some.fixed_dictionaries({}, optional={
        "tensor_parallel_size": powers, "pipeline_parallel_size": some.sampled_from([1, 2, 3]),
        "data_parallel_size": some.sampled_from([1, 2, 3]), "scheduling_policy": plugins("scheduling.policies"),
        "admission": plugins("scheduling.admissions"), "eviction": plugins("kv.cache.evictions"),
        "max_num_batched_tokens": some.sampled_from([1, 7, 64, 512, 2048, 8192]),
        "max_num_seqs": some.sampled_from([1, 2, 5, 64]), "max_num_active_seqs": some.sampled_from([1, 3, 100]),
        "gpu_memory_utilization": some.sampled_from([0.3, 0.9, 1.0]),
        "block_size": some.sampled_from([1, 8, 16, 32, 48, 64]),
        "enable_prefix_caching": some.booleans(), "prefix_cache": some.sampled_from(["vllm", "sglang"]),
        "enable_chunked_prefill": some.booleans(), "long_prefill_token_threshold": some.sampled_from([0, 1, 30, 500]),
        "long_prefill_token_threshold_adaptive": some.booleans(),
        "prefill_schedule_interval": some.integers(1, 4), "scheduler_reserve_full_isl": some.booleans(),
        "watermark": some.sampled_from([0.0, 0.01, 0.5, 1.0]), "async_scheduling": some.booleans(),
        "quantization": some.sampled_from(sorted(QUANTIZATIONS)), "kv_cache_dtype": some.sampled_from(["auto", "fp8"]),
        "unquantized": some.lists(some.sampled_from(PARTS), unique=True),
        "usage_context": some.sampled_from(["openai_api_server", "llm_class"]), "enforce_eager": some.booleans(),
        "cudagraph_mode": some.sampled_from(CUDAGRAPH_MODES),
        "cudagraph_capture_sizes": some.lists(some.integers(1, 600), min_size=1, max_size=4),
        "max_cudagraph_capture_size": some.sampled_from([1, 8, 512, 5000]),
        "fuse_allreduce_rms": some.booleans()})


def experts() -> Tables:
    """Settings of those who hold experts, and of messages that are overlapped: mostly ones that go together."""
    anything = some.fixed_dictionaries({}, optional={
        "enable_expert_parallel": some.booleans(), "enable_eplb": some.booleans(),
        "num_redundant_experts": some.sampled_from([0, 1, 8]), "all2all_backend": some.sampled_from(EXCHANGES),
        "expert_placement_strategy": some.sampled_from(["linear", "round_robin"]),
        "overlap_stages": some.sampled_from([1, 2]), "overlap_sms": some.sampled_from([0, 8])})
    whole = {"enable_expert_parallel": True, "tensor_parallel_size": 2}
    return some.one_of(
        some.just({}), some.just({}), some.just({"overlap_stages": 2, "overlap_sms": 8, "tensor_parallel_size": 2}),
        some.builds(lambda exchange: whole | {"data_parallel_size": 2, "all2all_backend": exchange},
                    some.sampled_from(EXCHANGES)),
        some.builds(lambda exchange: whole | {"data_parallel_size": 2, "all2all_backend": exchange, "enable_dbo": True,
                                              "dbo_decode_token_threshold": 2}, some.sampled_from(EXCHANGES[1:])),
        some.builds(lambda more: whole | more, some.sampled_from([
            {}, {"expert_placement_strategy": "round_robin"}, {"enable_eplb": True},
            {"enable_eplb": True, "num_redundant_experts": 8}, {"expert_parallel_size": 1}])), anything)


def offloading() -> Tables:
    """Settings of engines that offload KV; most do not."""
    native = some.builds(lambda size, threshold: {"kv_offloading_size": size, "kv_transfer_config": {
        "kv_connector_extra_config": threshold}}, some.sampled_from([1e-4, 0.01, 1.0]), some.fixed_dictionaries(
            {}, optional={"store_threshold": some.sampled_from([0, 2]), "blocks_per_chunk": some.sampled_from([1, 3]),
                          "eviction_policy": plugins("kv.offload.evictions"), "offload_prompt_only": some.booleans()}))
    tiers = some.builds(lambda kind, size: {"kv_transfer_config": {
        "kv_connector": "OffloadingConnector", "kv_connector_extra_config": {
            "cpu_bytes_to_use": size, "spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": kind}]}}},
        some.sampled_from(["fs", "fs", "obj"]), some.sampled_from(["1 MB", "50 MB", "1 GB"]))
    stores = some.builds(lambda name, options: {"kv_transfer_config": {
        "kv_connector": name, "kv_connector_extra_config": options[name]}},
        some.sampled_from(["LMCacheConnectorV1", "MooncakeStoreConnector"]), some.fixed_dictionaries({
            "LMCacheConnectorV1": some.builds(lambda size: {"lmcache.max_local_cpu_size": size},
                                              some.sampled_from([0.001, 1.0])),
            "MooncakeStoreConnector": some.builds(lambda size: {"global_segment_size": size},
                                                  some.sampled_from(["1 MB", "1 GB"]))}))
    return some.one_of(*[some.just({})] * 4, native, tiers, stores)


def routers() -> Tables:
    """Routers, some with options that change what they go by, or let them refuse requests."""
    scorers = some.dictionaries(some.sampled_from([
        name.replace("_", "-") for name in catalog.names(LLM_D_PARTS)
        if hasattr(catalog.find(LLM_D_PARTS, name), "score")]), some.sampled_from([0.5, 1, 3]), min_size=1, max_size=4)
    some_options = some.sampled_from([
        {"name": "dynamo_kv", "router_temperature": 0.5}, {"name": "dynamo_kv", "use_kv_events": False},
        {"name": "mooncake", "ttft_slo": "20 ms"}, {"name": "mooncake", "tbt_slo": "5 ms"},
        {"name": "mooncake", "transfer_rate": 1e6}, {"name": "session_affinity", "fallback": "mooncake"},
        {"name": "consistent_hash", "hash_balance_factor": 125}, {"name": "omniscient", "minimise": "ttft"},
        {"name": "sglang_cache_aware", "max_tree_size": 100}])
    picked = some.builds(lambda weights, filters: {"name": "llm_d", "scorers": weights, "filters": filters}, scorers,
                         some.lists(some.sampled_from(["low-queue-filter", "utilization-detector",
                                                       "prefix-cache-affinity-filter", "decode-filter"]), max_size=2))
    return some.one_of(plugins("cluster.routers"), plugins("cluster.routers"), some_options, picked)


def before_routers() -> Tables:
    """What routers are told, and what holds requests or refuses them before a router sees them."""
    signals = some.fixed_dictionaries({}, optional={
        "scrape_interval": some.sampled_from(["0 s", "1 ms", "50 ms", "1 s"]), "loss": some.sampled_from([0, 0.3]),
        "delay": some.sampled_from(["0 s", "0.3 ms", "20 ms"]),
        "metrics": some.sampled_from([True] * 9 + [False]), "kv_events": some.sampled_from([True] * 9 + [False])})
    controls = some.one_of(plugins("cluster.flow_controls"), some.sampled_from([
        {"name": "queue_limit", "max_requests": 1}, {"name": "queue_limit", "default_request_ttl": "5 ms"},
        {"name": "fair_queue", "weights": {"a": 3.0}}, {"name": "predicted_ttft", "ttft_slo": "5 ms"}]))
    return some.fixed_dictionaries({}, optional={"signals": signals, "flow_control": controls})


def retries() -> Tables:
    return some.sampled_from([{"max_retries": 2}, {"max_retries": 5, "initial_delay": "1 ms", "max_delay": "5 ms"}])


def details() -> Tables:
    """The level of detail, and how ranks differ; most slow GPUs are ones that engines have."""
    slow = some.fixed_dictionaries({"gpu": some.sampled_from([0, 0, 0, 1, 1, 2, 3, 7, 40])}, optional={
        "speed": some.sampled_from([0.3, 0.9, 1.0, 1.1]), "clock": some.sampled_from(["500 MHz", "1.2 GHz", "1 MHz"]),
        "watts": some.sampled_from([-20, 30, 200]), "delay": some.sampled_from(["20 us", "1 ms"]),
        "link": some.sampled_from([0.1, 0.5, 2.0]), "start": some.sampled_from([0, "3 ms", "1 s"]),
        "end": some.sampled_from(["5 ms", "0.1 s", "9 s"])})
    ranks = some.fixed_dictionaries({}, optional={
        "slow": some.lists(slow, max_size=3), "speed_spread": some.sampled_from([0.0, 0.02, 0.5]),
        "power_spread": some.sampled_from([0.0, 0.1]), "launch_jitter": some.sampled_from([0, "10 us", "1 ms"]),
        "experts": some.sampled_from(["drawn", "even"])})
    return some.one_of(
        some.just({}), some.sampled_from(["step", "kernel", "rank"]).map(lambda detail: {"detail": detail}),
        some.builds(lambda ranks: {"detail": "rank", "ranks": ranks}, ranks))


def scenarios() -> Tables:
    """Tables of scenarios, each key of which may be absent."""
    hardware = some.one_of(some.builds(lambda gpu: {"gpu": gpu}, entries("gpus")),
                           some.builds(lambda system: {"system": system}, entries("systems")))
    governors = some.one_of(
        some.just("slack"), some.builds(lambda clock: {"name": "per_phase", "decode": clock},
                                        some.sampled_from(["1 GHz", "1.2 GHz", "10 GHz"])))
    rest = some.fixed_dictionaries(
        {"model": some.one_of(some.sampled_from(SMALL), entries("models")), "workload": workloads(),
         "serve": some.builds(lambda *parts: parts[0] | parts[1] | parts[2], settings(), experts(), offloading())},
        optional={
            "engine": entries("engines"), "nodes": some.sampled_from([1, 2, 4]), "router": routers(),
            "oracle": some.sampled_from(["roofline", "learned", "measured"]), "host": entries("hosts"),
            "routing": some.sampled_from(["uniform", {"name": "zipf", "exponent": 1.0}]),
            "slo": some.fixed_dictionaries({}, optional={
                "ttft": some.just("20 ms"), "tpot": some.just("5 ms"), "e2el": some.just("1 s")}),
            "power": some.fixed_dictionaries({}, optional={
                "cap": some.sampled_from(["150 W", "300 W", "500 W", "2 kW"]),
                "clock": some.sampled_from(["500 MHz", "1.5 GHz", "1.9 GHz"]), "governor": governors}),
            "energy": some.fixed_dictionaries({}, optional={
                "grid": entries("grids"), "pue": some.floats(1, 2), "host_watts": some.just("1 kW"),
                "price_per_kwh": some.floats(0, 1), "sleep_after": some.sampled_from(["0 s", "10 ms", "1 s"])}),
            "seed": some.integers(0, 99)})
    parts = some.builds(lambda *tables: reduce(or_, tables), rest, before_routers(), details())
    return some.builds(_known_to_the_engine, hardware, parts, some.integers(0, 9))


def _known_to_the_engine(hardware: dict[str, Any], rest: dict[str, Any], chance: int) -> dict[str, Any]:
    """One scenario, mostly without the settings that its release of an engine lacks."""
    unknown = engine_of(rest.get("engine", "vllm-0.33")).unknown_settings if chance else ()
    made = hardware | rest | {"serve": {key: value for key, value in rest["serve"].items() if key not in unknown}}
    of_sglang = chance and str(made.get("engine", "")).startswith("sglang")
    return as_sglang_says(made) if of_sglang else made
