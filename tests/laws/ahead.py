"""Runs that go ahead of the clock and runs that do not, and scenarios for both."""

from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import play
from ksim.views.result import Result
from tests.laws.tiny import uniform

#: Requests that come one by one or all at once, alone, in sessions or with prefixes that they share, or whenever
#: another is through; into a cache that may be too small for them.
workloads = st.fixed_dictionaries({
    "synthetic": st.fixed_dictionaries({
        "arrivals": st.just({"process": "burst"}) | st.fixed_dictionaries(
            {"process": st.just("poisson"), "rate": st.sampled_from([20, 100, 500, 5000])}),
        "prompt": st.sampled_from([uniform(1, 150), uniform(1, 5)]),
        "output": st.sampled_from([uniform(1, 10), uniform(20, 90)]),
        "count": st.integers(1, 25), "max_tokens": st.just(250),
    }, optional={
        "sessions": st.just({"turns": uniform(1, 3), "think": uniform("0 s", "1 s")}),
        "prefixes": st.just({"groups": 2, "tokens": 40}),
    }),
}, optional={"max_concurrency": st.integers(1, 6)})
serves = st.fixed_dictionaries({
    "async_scheduling": st.booleans(), "enable_prefix_caching": st.booleans(),
    "max_num_seqs": st.sampled_from([2, 8, 32]), "max_num_batched_tokens": st.sampled_from([32, 256]),
    "num_gpu_blocks_override": st.sampled_from([20, 40, 500]), "max_model_len": st.just(256),
    "data_parallel_size": st.sampled_from([1, 1, 3]), "pipeline_parallel_size": st.sampled_from([1, 1, 1, 2]),
    "admission": st.sampled_from(["always", "reserve_output"]), "prefix_cache": st.sampled_from(["vllm", "sglang"]),
})


def both(scenario: dict[str, Any]) -> tuple[Result, Result]:
    """A run that skips, and one that does not."""
    made = Scenario.of(scenario)
    site = Deployment.of(made)
    skipped, stepped = (play(evolve(site, skips=skips), made.workload.requests(made.seed)) for skips in (True, False))
    return skipped, stepped
