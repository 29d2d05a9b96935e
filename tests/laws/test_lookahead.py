"""Going ahead never changes anything: an engine that does so does what one does that takes every step."""

import json
from itertools import chain
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch
from ksim.flow.events import Arrived, Finished
from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.foundation.errors import KsimError
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play, simulate
from tests.kv.transfer import fleets
from tests.laws.ahead import both, serves, workloads
from tests.laws.happenings import facts, times
from tests.laws.tiny import TINY, uniform
from tests.properties import examples


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(TINY))
    return path


powers = st.sampled_from([{}, {}, {"cap": "200 W"}, {"clock": "1.5 GHz"}, {"governor": "per_phase"}])


@pytest.mark.parametrize("policy", catalog.names("scheduling.policies"))
@given(serve=serves, workload=workloads, power=powers, seed=st.integers(0, 1000),
       router=st.sampled_from(catalog.names("cluster.routers")))
@examples(12)
def test_going_ahead_never_changes_anything(model, policy, serve, workload, power, seed, router):
    scenario = {"model": str(model), "gpu": "h200", "oracle": "roofline", "seed": seed, "workload": workload,
                "serve": {**serve, "scheduling_policy": policy}, "router": router, "power": power, "nodes": 1}
    skipped, stepped = both(scenario)
    assert any(stepped.log.of(Finished))
    assert facts(skipped.log) == facts(stepped.log)
    assert times(skipped.log) == pytest.approx(times(stepped.log), rel=1e-9)


@given(serve=serves, workload=workloads, seed=st.integers(0, 1000),
       factors=st.lists(st.floats(0.5, 3.0), min_size=3, max_size=3))
@examples(12)
def test_going_ahead_never_changes_anything_on_a_host_that_is_now_fast_now_slow(model, serve, workload, seed, factors):
    host = model.with_name("host.toml")
    host.write_text(f'name = "now and then"\nlike = "default"\nsource = "a law"\n'
                    f"[pace]\nfactors = {factors}\nsince = [0.0, 0.0123, 0.0456]\n")
    skipped, stepped = both({"model": str(model), "gpu": "h200", "oracle": "roofline", "seed": seed,
                             "workload": workload, "serve": serve, "host": str(host), "nodes": 1})
    assert facts(skipped.log) == facts(stepped.log)
    assert times(skipped.log) == pytest.approx(times(stepped.log), rel=1e-9)


@given(serve=serves, workload=workloads, seed=st.integers(0, 1000), late=st.sampled_from([1e3, 1e6]))
@examples(8)
def test_aborts_after_the_end_change_nothing(model, serve, workload, seed, late):
    made = Scenario.of({"model": str(model), "gpu": "h200", "oracle": "roofline", "seed": seed, "workload": workload,
                        "serve": serve})
    fleet, asked = Fleet.of(made), [*made.workload.requests(seed)]
    with_aborts = [evolve(request, aborted=late) for request in asked]
    skipped, stepped = play(fleet, asked), play(fleet.stepping(), with_aborts)
    ahead, played = ([fact for fact in facts(run.log) if fact[0] is not Arrived] for run in (skipped, stepped))
    assert ahead == played and times(skipped.log) == pytest.approx(times(stepped.log), rel=1e-9)
    assert stepped.summary["duration"] == pytest.approx(skipped.summary["duration"])


def test_an_engine_that_goes_ahead_takes_no_request_that_will_be_aborted(model):
    fleet = Fleet.of(Scenario.of({"model": str(model), "gpu": "h200", "oracle": "roofline", "workload": {
        "synthetic": {"arrivals": {"process": "burst"}, "prompt": uniform(1, 9), "output": uniform(1, 9)}}}))
    with pytest.raises(KsimError, match=r"request 0 is aborted after 0.5 s.*fleet.stepping"):
        play(fleet, [Request(0, 0.0, 20, 30, aborted=0.5)])


@given(serve=serves, workload=workloads, power=powers, seed=st.integers(0, 1000),
       oracle=st.sampled_from(["measured", "learned", "waves", "roofline"]))
@examples(12)
def test_all_metrics_are_the_same_with_and_without_going_ahead(model, serve, workload, power, seed, oracle):
    scenario = {"model": str(model), "gpu": "h200", "oracle": oracle, "seed": seed, "workload": workload,
                "serve": serve, "power": power, "nodes": 1}
    skipped, stepped = both(scenario)
    for name, value in stepped.summary.items():
        about = pytest.approx(value, rel=1e-9, abs=1e-9) if isinstance(value, float) else value
        assert skipped.summary[name] == about, name


#: More requests than there is room for, most of the time: who comes then changes nothing for those before.
crowds = st.fixed_dictionaries({"synthetic": st.fixed_dictionaries({
    "arrivals": st.fixed_dictionaries({"process": st.just("poisson"), "rate": st.sampled_from([200, 1000, 5000])}),
    "prompt": st.sampled_from([uniform(1, 150), uniform(1, 5)]),
    "output": st.sampled_from([uniform(1, 10), uniform(20, 90)]), "count": st.integers(10, 40),
    "max_tokens": st.just(250)}, optional={"prefixes": st.just({"groups": 2, "tokens": 40})})})


@given(serve=serves, slots=st.sampled_from([1, 2, 3]), workload=crowds, power=powers, seed=st.integers(0, 1000))
@examples(12)
def test_turns_that_are_dated_later_never_change_anything(model, serve, slots, workload, power, seed):
    scenario = {"model": str(model), "gpu": "h200", "oracle": "roofline", "seed": seed, "workload": workload,
                "serve": {**serve, "max_num_seqs": slots}, "power": power, "nodes": 1}
    skipped, stepped = both(scenario)
    assert facts(skipped.log) == facts(stepped.log)
    assert times(skipped.log) == pytest.approx(times(stepped.log), rel=1e-9)


@pytest.mark.parametrize("arrivals", [{"process": "burst"}, {"process": "poisson", "rate": 5000}])
def test_undated_turns_are_priced_together(model, monkeypatch, arrivals):
    one_by_one = []
    summarize = StepTimer.summarize
    monkeypatch.setattr(StepTimer, "summarize", lambda timer, batches: (
        isinstance(batches, Batch) and one_by_one.append(batches)) or summarize(timer, batches))
    workload = {"synthetic": {"arrivals": arrivals, "prompt": uniform(100, 150), "output": uniform(1, 10), "count": 60}}
    serve = {"max_num_seqs": 2, "max_num_batched_tokens": 64, "max_model_len": 256}
    skipped, _ = both({"model": str(model), "gpu": "h200", "oracle": "roofline", "workload": workload, "serve": serve})
    assert len(one_by_one) < skipped.summary["steps"] / 10


def test_a_waiting_job_starts_when_a_computed_prompt_makes_room(model):
    """SGLang's cache keeps equal prompts once, when they are computed: then the next one fits."""
    workload = {"synthetic": {
        "arrivals": {"process": "burst"}, "prompt": uniform(1, 150), "output": uniform(1, 10), "count": 5,
        "max_tokens": 250, "sessions": {"turns": uniform(1, 3), "think": uniform("0 s", "1 s")},
        "prefixes": {"groups": 2, "tokens": 40}}}
    serve = {"scheduling_policy": "earliest_deadline_first", "max_num_seqs": 8, "max_num_batched_tokens": 256,
             "num_gpu_blocks_override": 20, "max_model_len": 256, "prefix_cache": "sglang"}
    skipped, stepped = both({"model": str(model), "gpu": "h200", "oracle": "roofline", "workload": workload,
                             "serve": serve})
    assert facts(skipped.log) == facts(stepped.log)


def requests(count, rate, prompt, output, **more):
    return {"synthetic": {"arrivals": {"process": "poisson", "rate": rate}, "prompt": prompt, "output": output,
                          "count": count, "max_tokens": 250, **more}}


def one_by_one(output):
    """A workload of requests that stand in a queue, with at most *output* tokens each."""
    return requests(16, 500, uniform(40, 50), uniform(1, output))


TIGHT = {"max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 256, "num_gpu_blocks_override": 20}
DRAFTS = {"prefix_cache": "vllm", "speculative_config": {"method": "ngram", "num_speculative_tokens": 2,
                                                         "acceptance": {"name": "geometric", "rate": 0.7}}}
OFFLOADS = {"prefix_cache": "vllm", "kv_offloading_size": 0.01, "tensor_parallel_size": 2}
AMPLE = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 256, "num_gpu_blocks_override": 500}
LONG = requests(16, 500, uniform(5, 120), uniform(30, 90))
#: Two engines share a disk behind little room in host memory.
TIERS = {"prefix_cache": "vllm", "tensor_parallel_size": 2, "kv_transfer_config": {
    "kv_connector": "OffloadingConnector", "kv_connector_extra_config": {
        "cpu_bytes_to_use": 491520, "spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs"}]}}}
FULL = {"async_scheduling": False, "max_num_seqs": 8, "max_model_len": 256, "num_gpu_blocks_override": 20}


def assert_the_same_choices(skipped, stepped):
    """A router chose and scored alike in both runs."""
    ahead, steps = (result.routing.to_pydict() for result in (skipped, stepped))
    assert [ahead[key] for key in ("request", "engine", "prefill_engine")] == [
        steps[key] for key in ("request", "engine", "prefill_engine")]
    assert [*chain(*ahead["score"])] == pytest.approx([*chain(*steps["score"])], rel=1e-9, abs=1e-9)


@example(serve={**TIGHT, "async_scheduling": True}, more={}, workload=one_by_one(4), seed=0)
@example(serve={**TIGHT, "async_scheduling": False}, more={}, workload=one_by_one(4), seed=0)
@example(serve={**TIGHT, "async_scheduling": False, "max_num_seqs": 2}, more=DRAFTS, workload=one_by_one(10), seed=1)
@example(serve={**AMPLE, "async_scheduling": True}, more=OFFLOADS, workload=LONG, seed=0)
@example(serve={**FULL, "max_num_seqs": 2, "max_num_batched_tokens": 32, "enable_prefix_caching": False},  # it polls
         more=OFFLOADS, seed=0,
         workload=requests(18, 20, uniform(1, 150), uniform(1, 10), prefixes={"groups": 2, "tokens": 40}))
@example(serve={**FULL, "max_num_batched_tokens": 64}, more=TIERS, seed=52,  # a batch waits for stores
         workload=requests(18, 300, uniform(40, 150), uniform(1, 25),
                           sessions={"turns": uniform(1, 4), "think": uniform("0 s", "0.1 s")}))
@example(serve={**FULL, "max_num_batched_tokens": 256}, more=TIERS, seed=6,  # another engine writes what a job lacks
         workload=requests(12, 1000, uniform(40, 150), uniform(1, 25), prefixes={"groups": 2, "tokens": 64}))
@given(serve=serves, more=st.sampled_from([{}, {"max_num_seqs": 1}, {"max_num_seqs": 2}, DRAFTS, OFFLOADS, TIERS]),
       workload=workloads, seed=st.integers(0, 1000))
@examples(24)
def test_the_truth_about_equal_engines_is_the_same_however_they_are_played(model, serve, more, workload, seed):
    """The yardstick of all routers must not depend on shortcuts: it foresees what an engine has under way."""
    assert_the_same_choices(*both({
        "model": str(model), "gpu": "h200", "oracle": "roofline", "seed": seed, "workload": workload, "nodes": 1,
        "serve": {**serve, **more, "data_parallel_size": 2, "pipeline_parallel_size": 1}, "router": "omniscient"}))


@example(connector="nixl", serve={**FULL, "max_num_batched_tokens": 64}, policy="fail", seed=33,
         workload=requests(8, 500, uniform(1, 150), uniform(1, 10)))
@given(connector=st.sampled_from(["nixl", "mooncake"]), serve=serves, workload=workloads, seed=st.integers(0, 1000),
       policy=st.sampled_from(["fail", "recompute"]))
@examples(8)
def test_the_truth_about_engines_that_split_requests_is_the_same_however_they_are_played(
        model, connector, serve, workload, seed, policy):
    """They wait for KV that others send, and until others have fetched theirs."""
    made = fleets.scenario(
        str(model), connector, pools={side: {"role": side, "replicas": 2} for side in ("prefill", "decode")},
        workload=workload, seed=seed, policy=policy,
        **{**serve, "prefix_cache": "vllm", "data_parallel_size": 1, "pipeline_parallel_size": 1})
    made["pair_router"] = {"name": "each_side", "prefill": "omniscient", "decode": "omniscient"}
    assert_the_same_choices(*(fleets.run(made, skips) for skips in (True, False)))


def test_a_client_has_no_more_requests_in_flight_than_it_may(model):
    """The next request sets out at the very moment at which the one before has its last token, to the last bit."""
    workload = {"max_concurrency": 1, "synthetic": {
        "arrivals": {"process": "poisson", "rate": 100}, "prompt": uniform(1, 150), "output": uniform(1, 10),
        "count": 25, "max_tokens": 250, "prefixes": {"groups": 2, "tokens": 40}}}
    serve = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 256, "async_scheduling": False,
             "num_gpu_blocks_override": 40, "enable_prefix_caching": False}
    result = simulate(Scenario.of({"model": str(model), "gpu": "h200", "oracle": "roofline", "seed": 338, "nodes": 1,
                                   "workload": workload, "serve": serve,
                                   "pools": {"all": {"role": "both", "replicas": 2}}}))
    assert result.summary["max_concurrent_requests"] == 1
