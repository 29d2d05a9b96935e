"""What scenarios may use, each a small change of a tiny scenario, and scenarios in which each pair of them occurs."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from attrs import evolve

from ksim import KsimError, Scenario
from ksim.foundation import catalog
from ksim.scenario.sglang import VLLM_KEYS
from ksim.server.recording import row_of
from tests.explore.other_words import AMPLE
from tests.laws.small import SMALL
from tests.laws.tiny import TINY, uniform

Table = dict[str, Any]
Feature = Callable[[Random], Table]

#: Of every scenario; a feature changes some of it.
BASE: Table = {
    "model": "dense", "gpu": "h200", "oracle": "roofline", "nodes": 1,
    "serve": {"max_model_len": 512, "max_num_seqs": 6, "max_num_batched_tokens": 256, "num_gpu_blocks_override": 300},
    "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 400.0}, "prompt": uniform(5, 120),
                               "output": uniform(1, 12), "count": 6}}}
#: Small models of tests/laws/small.py by what is asked of them.
EXPERTS = ["experts", "windows", "delta"]
SEEING = ["seeing", "seeing experts", "seeing windows"]
#: Tables some of whose keys may change alone.
INNER = {"serve", "workload", "synthetic", "power", "energy"}
#: Features of a scenario: a pair, and others beside it.
TOGETHER = 5


def serve(**settings: Any) -> Table:
    return {"serve": settings}


def ask(**settings: Any) -> Table:
    return {"workload": {"synthetic": settings}}


def other(chance: Random, folder: str, usual: str = "") -> str:
    """A plug-in of *folder* other than the *usual* one."""
    return chance.choice([name for name in catalog.names(folder) if name != usual])


def acceptance(chance: Random) -> Table:
    return chance.choice([
        {"name": "geometric", "rate": chance.choice([0.0, 0.4, 0.9, 1.0])},
        {"name": "by_position", "rates_by_position": [0.9, 0.4]},
        {"name": "by_request", "rate": 0.6}, {"name": "histogram", "counts": [3, 2, 1]}])


def drafting(method: str, **settings: Any) -> Feature:
    return lambda chance: serve(speculative_config={
        "method": method, "num_speculative_tokens": 2, **settings, "acceptance": acceptance(chance)})


def seeing(chance: Random) -> Table:
    images = {"bucket_config": {"(224, 224, 1)": 1.0}, "base_items_per_request": chance.choice([1, 2])}
    pool = {} if chance.random() < 0.5 else {"pool": chance.choice([1, 3])}
    return {"model": chance.choice(SEEING), **serve(max_model_len=4096, num_gpu_blocks_override=2000),
            **ask(images=images | pool)}


def lora(chance: Random) -> Table:
    count = chance.choice([1, 3])
    return {**serve(enable_lora=True, max_loras=chance.choice([1, 2]), max_cpu_loras=chance.choice([2, 4]),
                    lora_target_modules=["q_proj", "o_proj"],
                    lora_modules=[{"name": "adapter", "rank": 8, "count": count}]),
            **ask(adapters={"count": count, "exponent": 0.5, "base": chance.choice([0.0, 0.4])})}


def host_weights(chance: Random) -> Table:
    return serve(cpu_offload_gb=chance.choice([1e-6, 1e-5]))


def offloading(chance: Random) -> Table:
    more = chance.choice([{}, {"store_threshold": 2}, {"blocks_per_chunk": 3}, {"offload_prompt_only": True},
                          {"eviction_policy": other(chance, "kv.offload.evictions")}])
    return serve(kv_offloading_size=chance.choice([1e-3, 0.01]), kv_transfer_config={"kv_connector_extra_config": more})


def tiers(chance: Random) -> Table:
    return connecting("OffloadingConnector", {
        "cpu_bytes_to_use": chance.choice(["300 kB", "50 MB"]), "spec_name": "TieringOffloadingSpec",
        "secondary_tiers": [{"type": chance.choice(["fs", "obj"])}]})


def connecting(name: str, options: Table) -> Table:
    return serve(kv_transfer_config={"kv_connector": name, "kv_connector_extra_config": options})


def hicache(chance: Random) -> Table:
    return {"engine": "sglang-0.5.8", **serve(prefix_cache="sglang", block_size=chance.choice([1, 16]),
            kv_transfer_config={"kv_connector": "HiCache", "kv_connector_extra_config": {
                "hicache_ratio": 2.0, "hicache_write_policy": chance.choice(["write_back", "write_through"])}})}


def sglang(chance: Random) -> Table:
    """Settings of SGLang's scheduler, some of them tight."""
    policy = chance.choice(["fcfs", "fcfs", "lpm", "dfs-weight", "hrrn", "lof", "random", "shortest-prefill-first"])
    urgent = {"enable_priority_scheduling": True, "priority_scheduling_preemption_threshold": chance.choice([0, 10])}
    some: list[Table] = [
        {"schedule_policy": policy}, {"page_size": chance.choice([16, 64]), "chunked_prefill_size": 128},
        {"max_total_tokens": chance.choice([256, 512])}, {"enable_mixed_chunk": True}, urgent,
        {"disable_overlap_schedule": True}, {"disable_radix_cache": True}, {"max_queued_requests": 2},
        {"schedule_conservativeness": chance.choice([0.1, 1.5])}, {"scheduler_recv_interval": chance.choice([2, 9])},
        {"prefill_max_requests": 1}, {"prefill_decode_interval": 2, "prefill_decode_interval_min_bs": 1},
        {"min_free_slots_delay": 2}, {"max_prefill_tokens": 64}, {"chunked_prefill_size": -1},
        {"radix_eviction_policy": chance.choice(["lfu", "slru", "fifo", "filo", "mru"])},
        {"num_reserved_decode_tokens": chance.choice([0, 8]), "max_total_tokens": chance.choice([192, 256, 320])},
        {"disaggregation_decode_enable_radix_cache": True},
        {"disaggregation_decode_extra_slots": chance.choice([0, 2])}]
    own: Table = {}
    for settings in chance.sample(some, 3):
        own |= settings
    if "enable_priority_scheduling" in own and own.get("schedule_policy") not in (None, "fcfs", "lof"):
        del own["schedule_policy"]  # SGLang refuses both
    return {"engine": chance.choice(["sglang-0.5.8", "sglang-0.5.23"]), **serve(sglang=own)}


#: Settings of vLLM's scheduler, and SGLang's names of them.
SGLANG = {"max_model_len": "context_length", "max_num_seqs": "max_running_requests", "block_size": "page_size",
          "max_num_batched_tokens": "chunked_prefill_size"}


def as_sglang_says(table: Table) -> Table:
    """*table*, whose engine is SGLang's, with the settings of the scheduler by their names there, as far as it has
    such."""
    given = table["serve"]
    own = {name: given[key] for key, name in SGLANG.items() if key in given}
    if "num_gpu_blocks_override" in given:
        own["max_total_tokens"] = 16 * (given["num_gpu_blocks_override"] - 1) // 64 * 64
    if given.get("enable_prefix_caching") is False:
        own["disable_radix_cache"] = True
    if given.get("async_scheduling") is False:
        own["disable_overlap_schedule"] = True
    own |= given.get("sglang", {})
    if {"n", "beam_width"} & {*table["workload"].get("synthetic", {})}:  # one sequence of several may not be rejected
        own.pop("max_queued_requests", None)
    kept = {key: value for key, value in given.items() if key not in VLLM_KEYS}
    return {**table, "serve": {**kept, "sglang": own}}


def split(*engines: str, connectors: tuple[str, ...]) -> Feature:
    """Pools that prefill and decode apart, with releases of engines and connectors to choose from."""
    def feature(chance: Random) -> Table:
        roles = chance.choice([("prefill", "decode")] * 3 + [("prefill", "both"), ("prefill", "decode", "both")])
        config = {"kv_connector": chance.choice(connectors),
                  "kv_load_failure_policy": chance.choice(["fail", "recompute"])}
        if config["kv_connector"] == "nixl" and chance.random() < 0.5:
            config["kv_connector_extra_config"] = {"kv_lease_duration": chance.choice(["1 ms", "50 ms"])}
        router = {"pair_router": other(chance, "cluster.pair_routers")} if chance.random() < 0.5 else {}
        return {"engine": chance.choice(engines), "pools": {role: {"role": role} for role in roles}, **router,
                **serve(kv_transfer_config=config)}
    return feature


def routed(chance: Random) -> Table:
    return {"router": other(chance, "cluster.routers", "round_robin"),
            "pools": {"all": {"role": "both", "replicas": chance.choice([2, 3])}}}


def scaled(chance: Random) -> Table:
    """A pool whose replicas come and go while it serves: by an autoscaler, an update, or a drain of its node."""
    sizes = [[0.003 * step, chance.choice([0, 1, 2, 3])] for step in range(1, 6)]
    warm = {} if chance.random() < 0.7 else {"warm_pool": {"replicas": 1, "mode": "sleep_1"}}
    ends: Table = chance.choice([{}, {"pre_stop": "1 ms"}, {"termination_grace_period": "2 ms"},
                                 {"termination_grace_period": "2 ms", "migration_limit": chance.choice([1, 9])}])
    update = chance.choice([{}, {}, {"rolling_update": {"at": "5 ms", "max_surge": 1}}])
    drains = [] if chance.random() < 0.7 else [{"at": "4 ms", "nodes": [0], "for": "6 ms"}]
    start = chance.choice([{"mode": "measured", "ready": "0 s"}, {"mode": "measured", "ready": "2 ms"},
                           {"mode": "process", "node": "1 ms", "node_idle": chance.choice(["0 s", "3 ms"])}])
    return {"pools": {"all": {"role": "both", "replicas": chance.choice([1, 2]), "max_replicas": 3, **warm}},
            "autoscaler": {"name": "perfect", "interval": "1 ms", "sizes": {"all": [*sizes, [0.02, 2]]}},
            "startup": {"name": "default", **start},
            "lifecycle": ends | update, "drains": drains}


def refusing(chance: Random) -> Table:
    control = chance.choice([
        {"name": "queue_limit", "max_requests": 1}, {"name": "queue_limit", "default_request_ttl": "2 ms"},
        {"name": "fair_queue", "weights": {"a": 3.0}}, {"name": "predicted_ttft", "ttft_slo": "5 ms"}])
    return {"flow_control": control}


def phases(chance: Random) -> Table:
    parts = [{"rate": 300.0, "for": "10 ms"}, {"rate": 0.0, "for": "5 ms"},
             {"rate": 100.0, "to": 900.0, "for": "10 ms"}]
    return ask(arrivals={"phases": chance.sample(parts, 3), "repeat": True})


def ranks(chance: Random) -> Table:
    """GPUs that differ, of which the first is always there."""
    slow = {"gpu": 0, **chance.choice([
        {}, {"speed": 0.7}, {"speed": 0.5, "start": "2 ms", "end": "8 ms"}, {"clock": "1 GHz"}, {"watts": 150},
        {"delay": "50 us"}, {"link": 0.3}])}
    differing = chance.choice([{"slow": [slow]}, {"slow": [slow]}, {"speed_spread": 0.05}, {"power_spread": 0.1},
                               {"launch_jitter": "20 us"}, {}])
    return {"detail": "rank", "ranks": {**differing, "experts": chance.choice(["drawn", "even"])}}


#: What a scenario says to use each feature, by its name.
FEATURES: Mapping[str, Feature] = {
    "experts": lambda chance: {"model": chance.choice(EXPERTS)}, "delta": lambda _: {"model": "delta"},
    "windows": lambda _: {"model": "windows"}, "mamba": lambda _: {"model": "mamba"}, "images": seeing,
    "mtp": lambda chance: {"model": chance.choice(["experts", "delta"]), **drafting("mtp")(chance)},
    "ngram": drafting("ngram"), "eagle3": drafting("eagle3", model="HEAD"),
    "draft_model": drafting("draft_model", model="DRAFT"), "lora": lora, "host weights": host_weights,
    "policy": lambda chance: serve(scheduling_policy=other(chance, "scheduling.policies", "fcfs")),
    "admission": lambda chance: serve(admission=other(chance, "scheduling.admissions", "always")),
    "eviction": lambda chance: serve(eviction=other(chance, "kv.cache.evictions", "vllm")),
    "sglang cache": lambda _: serve(prefix_cache="sglang"), "sglang": lambda _: {"engine": "sglang-0.5.8"},
    "sglang settings": sglang,
    "tensorrt_llm": lambda _: {"engine": "trtllm-1.2"}, "older": lambda chance: {"engine": chance.choice([
        "vllm-0.18", "vllm-0.19", "vllm-0.22", "trtllm-1.0", "sglang-0.5"])},
    "no prefix caching": lambda _: serve(enable_prefix_caching=False),
    "whole prompts": lambda _: serve(enable_chunked_prefill=False, max_num_batched_tokens=4096),
    "small chunks": lambda chance: serve(long_prefill_token_threshold=chance.choice([1, 7, 30])),
    "fair chunks": lambda _: serve(long_prefill_token_threshold=16, long_prefill_token_threshold_adaptive=True),
    "prefill interval": lambda chance: serve(prefill_schedule_interval=chance.choice([2, 4])),
    "whole prompt reserved": lambda chance: serve(scheduler_reserve_full_isl=chance.choice([True, False])),
    "watermark": lambda chance: serve(watermark=chance.choice([0.01, 0.5])),
    "synchronous": lambda _: serve(async_scheduling=False),
    "scarce blocks": lambda chance: serve(num_gpu_blocks_override=chance.choice([12, 20]), max_model_len=160),
    "ample blocks": lambda _: serve(num_gpu_blocks_override=AMPLE),
    "few sequences": lambda chance: serve(max_num_seqs=chance.choice([1, 2])),
    "few active": lambda chance: serve(max_num_active_seqs=chance.choice([1, 3])),
    "few tokens": lambda chance: serve(max_num_batched_tokens=chance.choice([8, 40])),
    "block size": lambda chance: serve(block_size=chance.choice([32, 64])),
    "fp8 cache": lambda _: serve(kv_cache_dtype="fp8"),
    "quantized": lambda chance: serve(quantization=chance.choice(["fp8", "fp8_block", "awq", "gptq", "bitsandbytes"])),
    "eager": lambda _: serve(enforce_eager=True),
    "graphs": lambda chance: serve(cudagraph_mode=chance.choice(["NONE", "PIECEWISE", "FULL_DECODE_ONLY"])),
    "stages": lambda _: serve(pipeline_parallel_size=2), "tensor": lambda _: serve(tensor_parallel_size=2),
    "replicas": lambda chance: serve(data_parallel_size=chance.choice([2, 3])),
    "expert parallel": lambda chance: {"model": chance.choice(EXPERTS), **serve(
        data_parallel_size=2, enable_expert_parallel=True, **chance.choice([
            {}, {"enable_eplb": True}, {"all2all_backend": "deepep_low_latency"},
            {"all2all_backend": "deepep_high_throughput", "enable_dbo": True, "dbo_decode_token_threshold": 2,
             "dbo_prefill_token_threshold": 8}]))},
    "n": lambda chance: ask(n=chance.choice([2, 3]), max_completion_tokens=20),
    "beams": lambda _: ask(beam_width=2, output=uniform(2, 4)),
    "logprobs": lambda chance: ask(prompt_logprobs=chance.choice([0, 2])),
    "early ends": lambda _: ask(max_completion_tokens=30), "priorities": lambda _: {**ask(priorities=[0, 1, -2])},
    "tenants": lambda _: ask(tenants={"a": 1.0, "b": 3.0}),
    "sessions": lambda _: ask(sessions={"turns": uniform(1, 3), "think": uniform("0 s", "10 ms")}, max_tokens=400),
    "prefixes": lambda chance: ask(prefixes={"groups": 2, "tokens": chance.choice([16, 70])}),
    "burst": lambda _: ask(arrivals={"process": "burst"}), "phases": phases,
    "gamma": lambda _: ask(arrivals={"process": "gamma", "rate": 300.0, "burstiness": 0.2, "exact": True}),
    "one token": lambda _: ask(output={"kind": "fixed", "value": 1}),
    "long outputs": lambda _: ask(output=uniform(30, 90)),
    "concurrency": lambda chance: {"workload": {"max_concurrency": chance.choice([1, 3])}},
    "retries": lambda chance: {**refusing(chance), "workload": {"retries": {"initial_delay": "1 ms"}}},
    "flow control": refusing, "offloading": offloading, "tiers": tiers, "hicache": hicache,
    "lmcache": lambda chance: connecting("LMCacheConnectorV1", {
        "lmcache.max_local_cpu_size": chance.choice([0.001, 1.0]), "lmcache.chunk_size": 32}),
    "mooncake_store": lambda chance: connecting("MooncakeStoreConnector", {
        "global_segment_size": chance.choice(["1 MB", "1 GB"])}),
    "split": split("vllm-0.33", connectors=("nixl", "mooncake")),
    "split by sglang": split("sglang-0.5.8", "sglang-0.5.23", connectors=("sglang",)),
    "split by tensorrt_llm": split("trtllm-1.2", connectors=("tensorrt_llm",)), "routed": routed, "scaled": scaled,
    "late signals": lambda chance: {**routed(chance), "signals": {"scrape_interval": "1 ms", "delay": "0.3 ms",
                                                                  "loss": chance.choice([0, 0.3])}},
    "cap": lambda chance: {"power": {"cap": chance.choice(["200 W", "400 W"])}},
    "clock": lambda chance: {"power": {"clock": chance.choice(["1 GHz", "1.5 GHz"])}},
    "governor": lambda chance: {"power": {"governor": other(chance, "engine.governors")}},
    "ranks": ranks, "zipf": lambda _: {"routing": {"name": "zipf", "exponent": 1.0}},
    "oracle": lambda chance: {"oracle": chance.choice(["measured", "learned", "waves"])},
    "errors": lambda chance: {"oracle": "learned", "kernel_errors": chance.randrange(9)},
    "figures": lambda chance: {"gpu": {"name": "h200", "bandwidth": chance.choice(["2 TB/s", "9 TB/s"])}},
    "gpu": lambda chance: {"gpu": chance.choice(["h100", "b200", "l40s", "a100-80g"])},
    "nodes": lambda _: {"system": "hgx-h200", "nodes": 2},
    "energy": lambda _: {"energy": {"grid": "de", "pue": 1.3, "price_per_kwh": 0.2, "price_per_gpu_hour": 3.0}},
    "sleep": lambda _: {"energy": {"sleep_after": "1 ms"}},
    "aborts": lambda chance: {"aborts": {str(place): chance.choice([0.0, 1e-4, 5e-4, 1e-3, 3e-3, 0.01, 9.0])
                                         for place in chance.sample(range(6), 3)}},
    "targets": lambda _: {"slo": {"ttft": "5 ms", "tpot": "2 ms", "e2el": "20 ms"}},
}


def leaves(table: Table, path: str = "") -> Iterator[str]:
    """The keys that *table* sets; a table that belongs together is one key."""
    for key, value in table.items():
        if key in INNER:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key


def with_changes(table: Table, changes: Table) -> Table:
    """*table* with the keys that *changes* sets."""
    return {**table, **{key: with_changes(table.get(key, {}), value) if key in INNER else value
                        for key, value in changes.items()}}


def apart() -> set[frozenset[str]]:
    """Pairs of features that cannot be together, since they set one key."""
    sets = {name: {*leaves(make(Random(0)))} for name, make in FEATURES.items()}
    return {frozenset(pair) for pair in itertools.combinations(FEATURES, 2) if sets[pair[0]] & sets[pair[1]]}


def rows(chance: Random) -> list[list[str]]:
    """Lists of features in which each pair that can be together is: a greedy covering array."""
    exclusive = apart()
    left = {frozenset(pair) for pair in itertools.combinations(FEATURES, 2)} - exclusive
    order, found = sorted(map(sorted, left)), []
    chance.shuffle(order)
    for pair in order:
        if frozenset(pair) not in left:
            continue
        row = pair
        while len(row) < TOGETHER:
            gains = {name: sum(frozenset((name, one)) in left for one in row) for name in FEATURES if name not in row
                     and not any(frozenset((name, one)) in exclusive for one in row)}
            row = [*row, max(gains, key=lambda name: (gains[name], chance.random()))]
        left -= {*map(frozenset, itertools.combinations(row, 2))}
        found.append(row)
    return found


@cache
def shuffled(number: int) -> list[list[str]]:
    return rows(Random(number))


def features_of(seed: int) -> list[str]:
    """The features of the scenario of this *seed*; each pair occurs among few hundred consecutive seeds."""
    number = len(shuffled(0))
    lists = shuffled(seed // number)
    return lists[seed % number % len(lists)]


def table_of(names: list[str], seed: int) -> Table:
    """The scenario with the features of these *names*, whose values are drawn by *seed*."""
    chance = Random(seed)
    table: Table = {**BASE, "seed": seed % 1000}
    for name in names:
        table = with_changes(table, FEATURES[name](chance))
    return as_sglang_says(table) if str(table.get("engine")).startswith("sglang") else table


def with_files(table: Table, folder: Path) -> Table:
    """*table* with the files of its small models, which are written into *folder*."""
    head = {**TINY, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 500}
    text = json.dumps(table)
    for name, config in {**SMALL, "HEAD": head, "DRAFT": TINY}.items():
        file = folder / f"{name.replace(' ', '_')}.json"
        if not file.exists():
            file.write_text(json.dumps(config))
        text = text.replace(f'"model": "{name}"', f'"model": {json.dumps(str(file))}')
    made = json.loads(text)
    return replayed(made, made.pop("aborts"), folder) if "aborts" in made else made


def replayed(table: Table, aborts: Mapping[str, float], folder: Path) -> Table:
    """*table* with its load as a trace, in which the clients of requests at some places hang up after a while.

    A table that is refused stays as it is.
    """
    try:
        scenario = Scenario.of(table)
        requests = [*scenario.workload.requests(scenario.seed)]
    except KsimError:
        return table
    names = dict[Any, int]()
    rows = [row_of(evolve(request, aborted=aborts.get(str(place)), chunks=tuple(
        names.setdefault(chunk, len(names)) for chunk in request.chunks))) | {"delay": request.delay}
        for place, request in enumerate(requests)]
    trace = folder / "requests.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rest = {key: value for key, value in table["workload"].items() if key != "synthetic"}
    return {**table, "workload": {**rest, "replay": {"path": str(trace)}}}
