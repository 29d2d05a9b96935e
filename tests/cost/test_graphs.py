"""Which graph holds a step, and how long its launches take a host."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.cost.graphs import Graphs, Launching
from ksim.flow.batch import Batch
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario

GRAPHS = Graphs(full=(1, 2, 4, 8), piecewise=(1, 2, 4, 8, 16))


def decodes(count: int) -> Batch:
    return Batch.of(*[(1, 100)] * count)


def test_a_step_of_decodes_is_replayed_whole():
    assert GRAPHS.of(decodes(3)) == (Launching.FULL, 4)
    assert GRAPHS.of(decodes(8)) == (Launching.FULL, 8)


def test_more_decodes_than_whole_graphs_hold_are_replayed_in_pieces():
    assert GRAPHS.of(decodes(9)) == (Launching.PIECEWISE, 16)


def test_a_step_with_a_prompt_is_replayed_in_pieces():
    assert GRAPHS.of(Batch.of((1, 100), (2, 0))) == (Launching.PIECEWISE, 4)


def test_what_no_graph_holds_is_launched_kernel_by_kernel_and_not_padded():
    assert GRAPHS.of(Batch.of((17, 0))) == (Launching.COMPILED, 17)
    assert Graphs(eager=True).of(decodes(1)) == (Launching.EAGER, 1)


def test_attention_that_takes_any_batch_has_whole_graphs_of_any_step():
    assert Graphs(full=(4,), mixed=(4, 16)).of(Batch.of((9, 0))) == (Launching.FULL, 16)


@given(st.integers(1, 40), st.booleans())
def test_padding_only_adds_and_never_skips_a_smaller_graph(tokens, prompt):
    batch = Batch.of((tokens, 0)) if prompt and tokens > 1 else decodes(tokens)
    how, padded = GRAPHS.of(batch)
    sizes = {Launching.FULL: GRAPHS.full, Launching.PIECEWISE: GRAPHS.piecewise}.get(how, (tokens,))
    assert padded == min(size for size in sizes if size >= tokens)


@pytest.mark.parametrize("prefill, layers", [("900+0", 45), ("", 0)])
def test_prompts_of_gated_delta_rules_take_a_host_longer_to_launch(prefill, layers):
    scenario = Scenario.of({"model": "qwen3.5-397b-a17b", "gpu": "h200", "serve": {"tensor_parallel_size": 8},
                            "workload": ANY_WORKLOAD})
    (timer,) = Deployment.of(scenario).timers()
    slow = evolve(timer, host=evolve(timer.host, worker=evolve(timer.host.worker, states=2e-3)))
    batch = Batch.parse("4x1000", prefill)
    more = slow.step_cost(batch).launch_seconds - timer.step_cost(batch).launch_seconds
    assert more == pytest.approx(layers * 2e-3)


@pytest.mark.parametrize("prefill, quantization, shapes", [
    ("900+0", "nvfp4", 5), ("", "nvfp4", 0), ("900+0", "fp8_block", 0),
])
def test_a_library_that_plans_gemms_in_fp4_does_so_once_a_prompt_for_each_shape_of_weights(prefill, quantization,
                                                                                          shapes):
    """Of DeepSeek's: the output projection, and the up and down projections of dense and of shared experts."""
    serve = {"quantization": quantization, "data_parallel_size": 4, "enable_expert_parallel": True,
             "cudagraph_mode": "FULL_DECODE_ONLY"}
    if quantization == "nvfp4":
        serve["unquantized"] = ["attention_inputs"]
    scenario = Scenario.of({"model": "deepseek-v3", "gpu": "gb200", "serve": serve, "workload": ANY_WORKLOAD})
    (timer,) = Deployment.of(scenario).timers()
    planning = evolve(timer, host=evolve(timer.host, worker=evolve(timer.host.worker, plan=0.25)))
    batch = Batch.parse("4x1000", prefill)
    more = planning.step_cost(batch).launch_seconds - timer.step_cost(batch).launch_seconds
    assert more == pytest.approx(shapes * 0.25)
