"""Whole runs, from a scenario to its result."""

from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate, stream


def test_two_simultaneous_requests_do_not_preempt_each_other_for_ever():
    """Under priority scheduling, of two equal in priority and arrival the first is preempted: neither could end."""
    serve = {"scheduling_policy": "priority", "async_scheduling": False, "max_model_len": 1000, "max_num_seqs": 2,
             "max_num_batched_tokens": 1000, "block_size": 4, "enable_prefix_caching": False,
             "long_prefill_token_threshold": 4, "scheduler_reserve_full_isl": False, "num_gpu_blocks_override": 5}
    synthetic = {"count": 2, "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 1},
                 "output": {"kind": "fixed", "value": 13}}
    table = {"model": "llama-3.2-1b", "gpu": "h200", "engine": "vllm-0.33-any-block", "serve": serve,
             "workload": {"synthetic": synthetic}}
    summary = simulate(Scenario.of(table)).summary
    assert (summary["completed"], summary["total_output_tokens"]) == (2, 26)
    assert summary["preemptions"] > 0


def small() -> Scenario:
    return Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "workload": {"synthetic": {
        "count": 3, "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 40},
        "output": {"kind": "fixed", "value": 3}}}})


def test_a_deployment_that_was_built_before_gives_the_same_result():
    result, again = simulate(small()), simulate(Deployment.of(small()))
    assert (again.summary, again.scenario) == (result.summary, result.scenario)


def test_a_result_carries_its_scenario_with_nothing_left_open():
    result = simulate(small())
    assert 'system = "hgx-h200"' in result.scenario and "max_num_batched_tokens = 8192" in result.scenario
    assert result.summary["completed"] == 3


def test_a_run_says_how_many_outputs_end_early_at_max_model_len(tmp_path):
    """In memory and as a stream; a prompt that long is refused, and none of its outputs is cut."""
    made = small().with_values({"serve.max_model_len": 100, "serve.data_parallel_size": 2,
                                "workload.synthetic.prompt": {"kind": "uniform", "low": 60, "high": 130},
                                "workload.synthetic.output.value": 30, "workload.synthetic.count": 12})
    result = simulate(made)
    cut = sum(row["status"] == "completed" and row["output_tokens"] < 30 for row in result.requests.to_pylist())
    assert 0 < cut < 12
    said = f"requests whose output max_model_len = 100 cuts short: {cut}"
    assert said in result.remarks and said in stream(made, tmp_path / "run").remarks
    assert not simulate(small()).remarks
