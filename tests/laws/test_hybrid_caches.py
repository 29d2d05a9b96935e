"""Caches of several groups of layers: blocks are conserved, windows keep what they need, and engines may go ahead."""

import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from ksim.flow.events import Finished, Stepped
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.validation.cases import CaseRequest, KvGroup, RecordedCase, Settings, SpeculativeSettings
from ksim.validation.replay import ScheduleReplay
from tests.laws.ahead import both, serves, workloads
from tests.laws.happenings import facts, times
from tests.laws.tiny import TINY
from tests.properties import examples

#: Groups with blocks of one size: windows and chunks beside full attention and alone, and states.
LAYOUTS: list[list[dict[str, Any]]] = [
    [{"type": "full"}, {"type": "sliding", "window": 9}],
    [{"type": "sliding", "window": 12}, {"type": "full"}, {"type": "sliding", "window": 5}],
    [{"type": "sliding", "window": 9}],
    [{"type": "full"}, {"type": "sliding", "window": 10, "block_size": 2}],
    [{"type": "full"}, {"type": "chunked", "window": 8}],
    [{"type": "full"}, {"type": "mamba"}, {"type": "mamba"}],
    [{"type": "full"}, {"type": "mamba", "checkpoint": 1}],
]
#: Prompts of three families, which part sooner or later, and some with a long output.
requests = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2), st.integers(1, 40), st.integers(0, 9),
                              st.integers(1, 30)), min_size=1, max_size=12)
settings = st.fixed_dictionaries({
    "max_num_batched_tokens": st.sampled_from([16, 64]), "max_num_seqs": st.sampled_from([2, 8]),
    "num_gpu_blocks": st.sampled_from([40, 60, 300]), "async_scheduling": st.booleans(),
    "enable_prefix_caching": st.sampled_from([True, True, False]), "retention_interval": st.sampled_from([0, 0, None]),
    "policy": st.sampled_from(["fcfs", "priority"])})

ROOM = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "num_gpu_blocks": 300, "async_scheduling": False,
        "enable_prefix_caching": True, "retention_interval": 0, "policy": "fcfs"}


def case(groups: list[dict[str, Any]], limits: dict[str, Any], asked: list[tuple[int, ...]]) -> RecordedCase:
    """A case whose blocks have 4 tokens; states that nobody can find have one block a request, and each draft has one.
    """
    drafter = limits.get("speculative")
    if drafter is not None:
        groups = [{**group, "drafts": drafter.k} if group["type"] == "mamba" else group for group in groups]
    if not limits["enable_prefix_caching"]:
        groups = [{**group, "mode": "none", "block_size": 128} if group["type"] == "mamba" else group
                  for group in groups]
    made = [CaseRequest(id=str(place), arrival_step=step, prompt=[[family, shared], [100 + place, own]],
                        output_len=output, priority=place % 2, accept=drafter and [0, 2, 1])
            for place, (step, family, shared, own, output) in enumerate(asked)]
    kept = Settings(block_size=4, max_model_len=128, kv_groups=tuple(KvGroup(**group) for group in groups), **limits)
    return RecordedCase("law", kept, made)


def check(replay: ScheduleReplay) -> None:
    """No block is lost or held twice, and a window holds what it reaches, and no more than its share."""
    check_blocks(replay)
    cache: Any = replay._scheduler.cache
    tables: list[Any] = [job.block_table for job in replay._scheduler.running]
    for table in tables:
        for own, most in zip(table.groups, cache._most, strict=True):
            assert own.held <= most
            assert own.group.kind == "state" or own.first >= min(own.group.out_of_reach(table.processed), own.length)


def check_blocks(replay: ScheduleReplay) -> None:
    """No block is lost or held twice."""
    cache: Any = replay._scheduler.cache
    tables: list[Any] = [job.block_table for job in replay._scheduler.running]
    found = [block for table in tables for own in table.groups for block in own.found.values()]
    single = sum(own.held - len(own.found) for table in tables for own in table.groups)
    assert cache.pool.used == single + cache._reserved + len({id(block) for block in found})
    assert all(block.users == sum(block is other for other in found) for block in found)


@pytest.mark.parametrize("groups", LAYOUTS, ids=lambda groups: "_".join(group["type"] for group in groups))
@given(limits=settings, asked=requests)
@examples(40)
def test_blocks_are_conserved_and_windows_keep_only_what_they_reach(groups, limits, asked):
    replay, rows = ScheduleReplay(case(groups, limits, asked), repeats=False), []
    for row in replay.steps():
        rows.append(row)
        check(replay)
    assert replay.end == "stalled" or replay._scheduler.cache.pool.used == 0
    assert replay.end == "stalled" or [outcome["tokens"] for outcome in replay.outcomes] == [one[-1] for one in asked]
    assert rows == list(ScheduleReplay(replay.case).steps())


@pytest.mark.parametrize("groups", LAYOUTS, ids=lambda groups: "_".join(group["type"] for group in groups))
@given(limits=settings, asked=requests, method=st.sampled_from(["eagle", "draft_model", "ngram"]), k=st.integers(1, 9))
@example(limits=ROOM, asked=[(0, 0, 1, 2, 6)], method="eagle", k=3)  # the prompt needs one block, its slots two
@examples(16)
def test_blocks_are_conserved_while_drafts_are_verified(groups, limits, asked, method, k):
    replay = ScheduleReplay(case(groups, {**limits, "speculative": SpeculativeSettings(method=method, k=k)}, asked))
    for _ in replay.steps():
        check_blocks(replay)
    assert replay.end == "stalled" or replay._scheduler.cache.pool.used == 0


@given(limits=settings, asked=requests)
@examples(40)
def test_groups_of_full_attention_decide_as_one(limits, asked):
    """Unless cached blocks are taken: two groups queue theirs one after the other, so one group loses its own first."""
    if limits["enable_prefix_caching"]:
        limits = {**limits, "num_gpu_blocks": 1000}
    plain = evolve(case([], limits, asked).settings, kv_groups=())
    twice = evolve(plain, kv_groups=(KvGroup(type="full"),) * 2, num_gpu_blocks=2 * plain.num_gpu_blocks - 1)
    one, two = (list(ScheduleReplay(evolve(case([], limits, asked), settings=each)).steps()) for each in (plain, twice))
    assert [{**row, "free": 2 * row["free"], "free2": 2 * row["free2"]} for row in one] == two


def test_of_two_groups_one_loses_its_blocks_first():
    """A preempted request finds 52 of its tokens again with one group, and 48 with two, of which one lost its last."""
    limits = {"max_num_batched_tokens": 16, "max_num_seqs": 8, "num_gpu_blocks": 40, "async_scheduling": True,
              "enable_prefix_caching": True, "policy": "fcfs"}
    asked = [(0, 0, 1, 0, 1), (0, 1, 18, 9, 23), (0, 0, 1, 0, 22), (0, 0, 1, 2, 23), (0, 0, 30, 9, 20)]
    one = evolve(case([], limits, asked).settings, kv_groups=())
    two = evolve(one, kv_groups=(KvGroup(type="full"),) * 2, num_gpu_blocks=79)
    replays = [ScheduleReplay(evolve(case([], limits, asked), settings=each)) for each in (one, two)]
    again = [next(row for row in replay.steps() if row["s"] == 24) for replay in replays]
    assert [row["sched"][0][2:] for row in again] == [[6, 52], [10, 48]]


WINDOWS = {**TINY, "model_type": "gemma2", "sliding_window": 24, "head_dim": 16, "query_pre_attn_scalar": 16}
STATES = {**TINY, "model_type": "qwen3_next", "num_hidden_layers": 4, "head_dim": 16, "linear_conv_kernel_dim": 4,
          "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 4,
          "linear_num_value_heads": 4, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
          "shared_expert_intermediate_size": 96, "decoder_sparse_step": 1, "norm_topk_prob": True}
CONFIGS = {"windows": WINDOWS, "states": STATES}


@pytest.mark.parametrize("name", CONFIGS)
@given(serve=serves, workload=workloads, seed=st.integers(0, 1000))
@examples(12)
def test_going_ahead_never_changes_anything_with_several_groups(tmp_path_factory, name, serve, workload, seed):
    path = tmp_path_factory.getbasetemp() / f"{name}.json"
    if not path.exists():
        path.write_text(json.dumps(CONFIGS[name]))
    skipped, stepped = both({"model": str(path), "gpu": "h200", "oracle": "roofline", "seed": seed, "nodes": 1,
                             "workload": workload, "serve": {**serve, "prefix_cache": "vllm"}})
    assert facts(skipped.log) == facts(stepped.log)
    assert times(skipped.log) == pytest.approx(times(stepped.log), rel=1e-9)
    assert any(stepped.log.of(Finished)) or serve["num_gpu_blocks_override"] < 500


def test_a_policy_that_wishes_for_less_than_a_block_of_states_is_granted_it():
    """vLLM rounds chunks down to blocks; a policy with small chunks would never get one."""
    load = {"synthetic": {"count": 2, "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 1500},
                          "output": {"kind": "fixed", "value": 3}}}
    serve = {"max_model_len": 4096, "tensor_parallel_size": 2,
             "scheduling_policy": {"name": "stall_free", "budget": 512}}
    result = simulate(Scenario.of({"model": "qwen3-next-80b-a3b", "gpu": "b200", "oracle": "roofline", "serve": serve,
                                   "workload": load}))
    assert result.summary["completed"] == 2
    assert max(chunk for step in result.log.of(Stepped) for chunk, _ in step.batch.chunks) < 544
