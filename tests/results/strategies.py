"""Any log: fabricated runs of many shapes, of plain replicas or of fleets, whole or cut short."""

from math import inf

from attrs import evolve
from hypothesis import strategies as st

from ksim.flow.log import Log
from ksim.scenario.scenario import Scenario

from . import fabricate, fleet


@st.composite
def logs(draw: st.DrawFn) -> Log:
    whole = fabricate.log(
        count=draw(st.integers(1, 25)),
        rate=draw(st.sampled_from([2.0, 30.0, 5000.0])),
        output=draw(st.sampled_from([2, 12])),
        engines=draw(st.integers(1, 3)),
        ranks=draw(st.sampled_from([1, 2])),
        stages=draw(st.sampled_from([1, 2])),
        preempt_every=draw(st.sampled_from([0, 5])),
        seats=draw(st.sampled_from([2, 64])),
    )
    after, reach = draw(st.sampled_from([inf, inf, 0.0, 0.01, 0.5])), draw(st.sampled_from([0.0, 0.25]))
    whole.engines = [evolve(built, sleep_watts=60.0, sleep_after=after, reach=reach) for built in whole.engines]
    share = draw(st.sampled_from([1.0, 1.0, 0.5]))
    return fabricate.cut(whole, share * whole.events[-1].time)


@st.composite
def fleets(draw: st.DrawFn) -> Log:
    """Runs of split requests, with any style of connector."""
    whole = fleet.log(
        count=draw(st.integers(1, 30)),
        rate=draw(st.sampled_from([2.0, 30.0, 5000.0])),
        output=draw(st.sampled_from([2, 12])),
        prefill=draw(st.integers(1, 3)), decode=draw(st.integers(1, 3)),
        ranks=draw(st.sampled_from([1, 2])),
        style=fleet.Style(*(draw(st.booleans()) for _ in range(4))),
        preempt_every=draw(st.sampled_from([0, 5])),
        seats=draw(st.sampled_from([2, 64])),
        decode_first=draw(st.booleans()), seed=draw(st.integers(1, 9)),
    )
    share = draw(st.sampled_from([1.0, 1.0, 0.5]))
    cut = fabricate.cut(whole, share * whole.events[-1].time)
    cut.links += whole.links
    return cut


@st.composite
def fleet_scenarios(draw: st.DrawFn) -> Scenario:
    """Small runs of pools that differ in size and cache, with preemptions and prefix caching."""
    ranks, stages = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 1, 2]))

    def pool(role: str) -> dict[str, object]:
        serve = {"num_gpu_blocks_override": draw(st.sampled_from([135, 200, 5000])),
                 "max_num_batched_tokens": draw(st.sampled_from([100, 300, 2048])),
                 "max_num_seqs": draw(st.integers(2, 20)), "async_scheduling": draw(st.booleans()),
                 "tensor_parallel_size": ranks, "pipeline_parallel_size": stages}
        return {"role": role, "replicas": draw(st.integers(1, 2)), "serve": serve}

    load = {"arrivals": {"process": "poisson", "rate": draw(st.sampled_from([20, 3000]))},
            "count": draw(st.integers(2, 25)), "max_tokens": 2000,
            "prompt": {"kind": "lognormal", "median": 300, "sigma": 1.0},
            "output": {"kind": "exponential", "mean": 15}, "prefixes": {"groups": 2, "tokens": 96}}
    connector = {"kv_connector": draw(st.sampled_from(["nixl", "mooncake", "sglang", "tensorrt_llm"]))}
    return Scenario.of({"model": "llama-3.2-1b", "gpu": "h100", "nodes": 2, "oracle": "roofline",
                        "serve": {"max_model_len": 2048, "kv_transfer_config": connector},
                        "pools": {"p": pool("prefill"), "d": pool("decode")}, "seed": draw(st.integers(0, 99)),
                        "workload": {"synthetic": load}})
