"""Fleets of a tiny model that split requests, and what may come to them."""

from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play
from ksim.views.result import Result
from tests.laws.tiny import uniform

CONNECTORS = ("nixl", "mooncake", "sglang", "tensorrt_llm")
#: The option that says how long P holds blocks.
LEASES = {"nixl": "kv_lease_duration", "mooncake": "abort_request_timeout"}


def scenario(model: str, connector: str = "nixl", *, pools: dict[str, Any] | None = None,
             options: dict[str, Any] | None = None, workload: dict[str, Any] | None = None, seed: int = 1,
             policy: str = "fail", **serve: Any) -> dict[str, Any]:
    """A scenario of a prefill and a decode engine, or of other *pools*; *options* are those of the connector."""
    config = {"kv_connector": connector, "kv_connector_extra_config": options or {}, "kv_load_failure_policy": policy}
    return {
        "model": model, "gpu": "h200", "oracle": "roofline", "seed": seed, "nodes": 1,
        "pools": pools or {"prefill": {"role": "prefill"}, "decode": {"role": "decode"}},
        "workload": workload or requests(),
        "serve": {"max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 8,
                  "num_gpu_blocks_override": 60, **serve, "kv_transfer_config": config}}


def requests(count: int = 20, rate: float = 500, prompt: Any = None, output: Any = None, **more: Any) -> dict[str, Any]:
    """A workload of random requests."""
    return {"synthetic": {
        "arrivals": {"process": "poisson", "rate": rate}, "prompt": prompt or uniform(1, 150),
        "output": output or uniform(1, 30), "count": count, "max_tokens": 250, **more}}


def run(table: dict[str, Any], skips: bool = True) -> Result:
    """Run a scenario; if it does not skip, all engines take every step."""
    made = Scenario.of(table)
    fleet = Fleet.of(made)
    pools = tuple(evolve(pool, deployment=evolve(pool.deployment, skips=skips)) for pool in fleet.pools)
    return play(evolve(fleet, pools=pools), made.workload.requests(made.seed))


#: Few or many requests, alone, in sessions, or with prefixes that they share.
workloads = st.builds(
    requests, st.integers(1, 25), st.sampled_from([20, 100, 500, 5000]),
    st.sampled_from([uniform(1, 150), uniform(1, 5)]), st.sampled_from([uniform(1, 10), uniform(20, 90)]))
extras = st.fixed_dictionaries({}, optional={
    "sessions": st.just({"turns": uniform(1, 3), "think": uniform("0 s", "1 s")}),
    "prefixes": st.just({"groups": 2, "tokens": 40}), "prompt_logprobs": st.just(2)})
serves = st.fixed_dictionaries({
    "async_scheduling": st.booleans(), "enable_prefix_caching": st.booleans(),
    "prefix_cache": st.sampled_from(["vllm", "vllm", "sglang"]),
    "max_num_seqs": st.sampled_from([2, 8, 32]), "max_num_batched_tokens": st.sampled_from([32, 256]),
    "num_gpu_blocks_override": st.sampled_from([20, 40, 500]), "scheduler_reserve_full_isl": st.booleans(),
    "long_prefill_token_threshold": st.sampled_from([0, 0, 16])})


@st.composite
def split(draw: st.DrawFn, model: str) -> dict[str, Any]:
    """A scenario of any connector, in which no two engines do the same at the same moment."""
    connector = draw(st.sampled_from(CONNECTORS))
    workload = draw(workloads)
    workload["synthetic"] |= draw(extras)
    slots = draw(st.sampled_from([None, None, 1, 3]))
    prefill: dict[str, Any] = {"role": "prefill", "replicas": 1 if slots else draw(st.integers(1, 2))}
    if connector != "mooncake":
        prefill["serve"] = {"tensor_parallel_size": draw(st.sampled_from([1, 2]))}
    role = draw(st.sampled_from(["decode", "both"]))
    decode = {"role": role, "replicas": draw(st.integers(1, 2)),
              "serve": {"num_gpu_blocks_override": draw(st.sampled_from([20, 40, 500]))}}
    options = {}
    if connector in LEASES:
        lease = draw(st.sampled_from(["", "", "0.1 ms", "0.7 ms", "5 ms"]))
        options = {LEASES[connector]: lease} if lease else {}
    table = scenario(model, connector, pools={"prefill": prefill, "decode": decode}, options=options,
                     workload=workload, seed=draw(st.integers(0, 1000)),
                     policy=draw(st.sampled_from(["fail", "recompute"])), **draw(serves))
    table["pair_router"] = draw(st.sampled_from(["each_side", "least_loaded", *["llm_d"] * (role == "both")]))
    if slots:
        workload["max_concurrency"] = slots
    return table
