"""Policies that say what a batch is made of: prompts or decodes first, within a budget, or all at once."""

from typing import Any

import pytest

from ksim.scenario.scenario import Scenario
from ksim.scheduling.admissions.reserve_output import ReserveOutput
from ksim.scheduling.policies.batch_wait import BatchWait
from ksim.scheduling.policies.batching import Orca, PrefillFirst, RequestLevel, StallFree
from ksim.scheduling.policies.orders import Fcfs
from ksim.simulation.simulate import simulate
from ksim.testing.loop import Loop, loop


def summary(serve: dict[str, Any]) -> dict[str, Any]:
    """Sixty requests of 1,500 tokens on average on an H200, fourteen a second."""
    synthetic = {"arrivals": {"process": "poisson", "rate": 14}, "count": 60,
                 "prompt": {"kind": "uniform", "low": 500, "high": 2500},
                 "output": {"kind": "uniform", "low": 20, "high": 300}}
    return simulate(Scenario.of({"model": "llama-3.1-8b", "gpu": "h200", "serve": serve,
                                 "workload": {"synthetic": synthetic}})).summary


def end(engine: Loop) -> int:
    engine.run()
    return engine.turns


# Prompts first.


def test_a_step_has_prompts_or_decodes():
    engine = loop(policy=PrefillFirst(), max_num_batched_tokens=10, max_num_seqs=10)
    a, b = engine.add(4), engine.add(14)
    assert [engine.turn() for _ in range(3)] == [{a: 4, b: 6}, {b: 8}, {a: 1, b: 1}]
    c = engine.add(3)
    assert [engine.turn() for _ in range(2)] == [{c: 3}, {a: 1, b: 1, c: 1}]


def test_while_no_prompt_can_start_decodes_go_on():
    engine = loop(policy=PrefillFirst(), blocks=4)
    a = engine.add(11, output=3)
    engine.turn()
    b = engine.add(8)
    assert [engine.turn() for _ in range(4)] == [{a: 1}, {a: 1}, {b: 8}, {b: 1}]


def test_prompts_first_is_quick_to_the_first_token_and_uneven_after_it():
    first, free = (summary({"scheduling_policy": policy}) for policy in (
        "prefill_first", {"name": "stall_free", "budget": 256}))
    assert first["mean_ttft_ms"] < 0.9 * free["mean_ttft_ms"]
    assert first["p99_itl_ms"] > 2 * free["p99_itl_ms"]


# Waiting for a batch.


def test_prompts_wait_until_they_fill_a_step_or_for_so_many_steps():
    engine = loop(policy=BatchWait(budget=10, ratio=0.9, iterations=3), max_num_batched_tokens=10, max_num_seqs=10)
    a = engine.add(4, output=12)
    assert engine.turn() == {a: 4}  # nobody decodes, nobody waits
    b = engine.add(3, output=12)
    assert [engine.turn() for _ in range(4)] == [{a: 1}, {a: 1}, {a: 1}, {a: 1, b: 3}]
    c = engine.add(4)
    assert engine.turn() == {a: 1, b: 1}
    d = engine.add(4)
    assert engine.turn() == {a: 1, b: 1, c: 4, d: 4}  # 10 tokens: enough


# Stall-free.


def test_prompts_fill_a_step_of_decodes_up_to_the_budget():
    engine = loop(policy=StallFree(budget=10))
    a, b, c = engine.add(8), engine.add(14), engine.add(30)
    assert [engine.turn() for _ in range(4)] == [
        {a: 8, b: 2}, {a: 1, b: 9}, {a: 1, b: 3, c: 6}, {a: 1, b: 1, c: 8}]


def test_what_the_prefix_cache_has_takes_nothing_of_the_budget():
    engine = loop(policy=StallFree(budget=12))
    engine.add(9, output=1, chunks="ab")
    engine.turn()
    b, c = engine.add(10, chunks="ab"), engine.add(30)
    assert engine.turn() == {b: 2, c: 10}


def test_more_decodes_than_the_budget_has_tokens_all_go_on_and_prompts_wait():
    engine = loop(policy=StallFree(budget=2))
    a, b, c = (engine.add(1) for _ in range(3))
    assert [engine.turn() for _ in range(3)] == [{a: 1, b: 1}, {a: 1, b: 1}, {a: 1, b: 1}]
    assert c.rank < 0


# Static batches.


def test_nobody_joins_a_batch_that_decodes():
    engine = loop(policy=RequestLevel(batch=2))
    a, b, c, d = (engine.add(4, output=output) for output in (2, 4, 2, 2))
    assert [engine.turn() for _ in range(6)] == [
        {a: 4, b: 4}, {a: 1, b: 1}, {b: 1}, {b: 1}, {c: 4, d: 4}, {c: 1, d: 1}]


def test_a_batch_decodes_when_all_its_prompts_are_computed():
    engine = loop(policy=RequestLevel(batch=2), max_num_batched_tokens=10, max_num_seqs=10)
    a, b = engine.add(8, output=3), engine.add(8, output=3)
    assert [engine.turn() for _ in range(3)] == [{a: 8, b: 2}, {b: 6}, {a: 1, b: 1}]


@pytest.mark.parametrize("settings", [
    {}, {"prefill_schedule_interval": 3}, {"pipeline_parallel_size": 2}, {"async_scheduling": True}])
@pytest.mark.parametrize("policy", [RequestLevel(batch=8), PrefillFirst(), StallFree(budget=8), Orca(batch=8)])
def test_whatever_the_engine_all_come_to_an_end(policy, settings):
    engine = loop(policy=policy, blocks=12, **settings)
    for number in range(20):
        engine.add(5 + number, output=1 + number % 7)
    assert end(engine) < 300


def test_static_batches_take_longer_than_continuous_ones():
    def turns(policy: Any, **settings: Any) -> int:
        engine = loop(policy=policy, max_num_seqs=8, **settings)
        for number in range(64):
            engine.add(8, output=5 + 40 * (number % 4 == 0))
        return end(engine)

    static, orca, continuous = (turns(policy) for policy in (RequestLevel(batch=8), Orca(batch=8), Fcfs()))
    assert static > 1.5 * continuous
    assert orca == continuous


def test_throughput_rises_from_static_to_iteration_level_to_paged():
    """The order of Orca's and of vLLM's papers: slots that stand empty, then memory that does."""
    small = {"num_gpu_blocks_override": 1500, "enable_prefix_caching": False}
    static, orca, paged = (summary({**small, **serve})["output_throughput"] for serve in (
        {"scheduling_policy": "request_level", "admission": "reserve_output"},
        {"scheduling_policy": "orca", "admission": "reserve_output"}, {"admission": "future_memory"}))
    assert static < orca < paged


# Orca.


def test_orca_has_so_many_in_progress_and_memory_for_their_longest_outputs():
    engine = loop(policy=Orca(batch=2), admission=ReserveOutput(), blocks=10, enable_chunked_prefill=False)
    a, b, c = (engine.add(8, output=output, limit=11) for output in (3, 3, 3))
    assert [list(engine.turn()) for _ in range(4)] == [[a, b], [a, b], [a, b], [c]]
    engine = loop(policy=Orca(batch=9), admission=ReserveOutput(), blocks=10, enable_chunked_prefill=False)
    a, b, c = (engine.add(8, output=output, limit=11) for output in (3, 5, 3))
    assert [list(engine.turn()) for _ in range(4)] == [[a, b], [a, b], [a, b], [b, c]]


def test_orca_computes_prompts_whole():
    engine = loop(policy=Orca(), enable_chunked_prefill=False, max_num_batched_tokens=1000)
    a, b = engine.add(600, output=2), engine.add(600, output=2)
    assert [engine.turn() for _ in range(2)] == [{a: 600}, {a: 1, b: 600}]
