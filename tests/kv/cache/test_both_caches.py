"""vLLM's cache and SGLang's under the same scheduler: nobody loses a token, nothing is lost, and what is shared."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.request import Request
from ksim.kv.cache import Cache
from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.sglang import SglangCache
from ksim.kv.cache.vllm import VllmCache
from ksim.scenario.scenario import Scenario
from ksim.scheduling.job import Job, Limits, State
from ksim.scheduling.policies import ALL
from ksim.scheduling.policies.longest_prefix_first import LongestPrefixFirst
from ksim.scheduling.policies.orders import Fcfs
from ksim.scheduling.scheduler import Scheduler
from ksim.simulation.simulate import simulate
from ksim.testing.loop import ROOMY, Loop
from tests.kv.cache.trees import nodes
from tests.properties import examples
from tests.scheduling.workloads import Workload, workloads

CACHES = {"vllm": VllmCache,
          "sglang": lambda blocks, block_tokens, caching: SglangCache(blocks * block_tokens, caching)}

each_cache = pytest.mark.parametrize("name", CACHES)


class Proposing:
    """First come, first served; for a policy that proposes, each job is looked at in each step."""

    def propose(self, waiting: Any, running: Sequence[Job], now: float) -> Iterator[tuple[Job, int]]:
        yield from ((job, ALL) for job in running)
        yield from ((job, ALL) for job in waiting)


#: And vLLM's block by block.
EVERY: dict[str, Any] = CACHES | {"blocks": BlockCache}


def engine_of(workload: Workload, name: str, policy: Any) -> Loop:
    limits = dict(workload.settings)
    cache = EVERY[name](limits.pop("blocks"), limits.pop("block_tokens"), limits.pop("prefix_caching"))
    return Loop(Scheduler(Limits(**(ROOMY | limits)), policy, cache))


def play(workload: Workload, name: str, policy: Any) -> Iterator[Loop]:
    """Play *workload*, and pause after every schedule and every update."""
    engine, coming = engine_of(workload, name, policy), sorted(workload.arrivals, key=lambda arrival: arrival.turn)
    while coming or engine.scheduler.running or engine.scheduler.waiting:
        while coming and coming[0].turn <= engine.turns:
            arrival = coming.pop(0)
            engine.add(arrival.prompt, arrival.output, chunks=arrival.chunks(engine.cache.block_tokens),
                       limit=arrival.output + arrival.overrun, reads_cache=arrival.reads_cache)
        for turn, number, _ in workload.aborts:
            if turn == engine.turns and number < len(engine.jobs):
                engine.scheduler.abort(engine.jobs[number])
        engine.schedule()
        yield engine
        engine.update()
        yield engine
        assert engine.turns < 5000, "somebody starves"


def check_slots(engine: Loop) -> None:
    """Of SGLang's cache: each token is empty, in the tree, or some running request's own; locks are those of these."""
    cache = engine.cache
    if isinstance(cache, SglangCache):
        tables = [job.block_table for job in engine.scheduler.running]
        runs = sum(run.tokens for run in nodes(cache.tree))
        assert cache.pool.empty + runs + sum(t.num_slots - t.published for t in tables) == cache.capacity
        assert all(job.block_table.node is None for job in engine.scheduler.waiting)
        assert sum(child.locks for child in cache.tree.root.children.values()) == sum(t.published > 0 for t in tables)


@each_cache
@pytest.mark.parametrize("policy", [Fcfs, LongestPrefixFirst])
@given(workload=workloads(aborts=False, pipelines=True))
@examples(60)
def test_every_request_gets_exactly_its_tokens(name, policy, workload):
    engine = engine_of(workload, name, policy())
    for engine in play(workload, name, policy()):
        check_slots(engine)
    for job, arrival in zip(engine.jobs, sorted(workload.arrivals, key=lambda arrival: arrival.turn), strict=True):
        tokens = min(arrival.output, engine.scheduler.limits.max_model_len - arrival.prompt)
        assert (job.state, job.sampled) == (State.DONE, tokens)
    assert (engine.cache.pool.used, engine.cache.pool.free) == (0, engine.cache.capacity)


@each_cache
@given(workload=workloads(pipelines=True))
@examples(60)
def test_aborts_leave_nothing_behind(name, workload):
    engine = engine_of(workload, name, Fcfs())
    for engine in play(workload, name, Fcfs()):
        check_slots(engine)
    assert (engine.cache.pool.used, engine.cache.pool.free) == (0, engine.cache.capacity)


@pytest.mark.parametrize("name", EVERY)
@given(workload=workloads(pipelines=True))
@examples(20)
def test_a_cache_that_is_cleared_knows_what_running_requests_hold_and_no_more(name, workload):
    for engine in play(workload, name, Fcfs()):
        held = engine.cache.pool.used
        engine.cache.clear()
        check_slots(engine)
        assert engine.cache.pool.used == held
    for job in engine.jobs:
        assert engine.cache.find_prefix(job.block_table, 1 << 20).tokens == 0
    assert (engine.cache.pool.used, engine.cache.pool.free) == (0, engine.cache.capacity)


def seen(engine: Loop) -> dict[str, Any]:
    return {
        "entries": [(entry.job.number, entry.tokens, entry.start, entry.samples, entry.admitted)
                    for entry in engine.last_schedule.all_entries()],
        "preempted": [job.number for job in engine.last_schedule.preempted],
        "running": [job.number for job in engine.scheduler.running],
        "free": engine.cache.pool.free,
    }


@given(workload=workloads())
@examples(150)
def test_decodes_that_are_not_counted_step_by_step_take_their_slots_all_the_same(workload):
    runs = play(workload, "sglang", Fcfs()), play(workload, "sglang", Proposing())
    for short, long in islice(zip(*runs, strict=True), 1000):
        assert seen(short) == seen(long)


@pytest.mark.parametrize("policy", [Fcfs, Proposing])
@given(workload=workloads(pipelines=True))
@examples(100)
def test_vllms_cache_in_runs_makes_the_schedules_that_it_makes_block_by_block(policy, workload):
    runs = play(workload, "vllm", policy()), play(workload, "blocks", policy())
    for short, long in islice(zip(*runs, strict=True), 1000):
        assert seen(short) == seen(long)


def one_by_one(cache: Cache, requests: Sequence[Request]) -> list[int]:
    """Serve *requests*, one at a time; return how many tokens each finds."""
    engine = Loop(Scheduler(Limits(**ROOMY), Fcfs(), cache))
    jobs = [Job.of(request, request.id, cache.block_tokens, block_table=cache.block_table(request))
            for request in requests]
    for job in jobs:
        engine.scheduler.add(job)
        while job.state is not State.DONE:
            engine.turn()
    return [job.cached for job in jobs]


@st.composite
def conversations(draw: st.DrawFn, chunk_tokens: int) -> list[Request]:
    """Requests that begin with one of three prompts and go on in one of few ways."""
    requests = []
    for number in range(draw(st.integers(2, 10))):
        family, shared = draw(st.integers(0, 2)), draw(st.integers(0, 60))
        prompt, output = draw(st.integers(1, 90)), draw(st.integers(1, 30))
        way = draw(st.integers(0, 3))
        places = range(-(-(prompt + output) // chunk_tokens))
        chunks = [(family, place, way if place * chunk_tokens >= shared else -1) for place in places]
        requests.append(Request(number, 0.0, prompt, output, chunks, chunk_tokens))
    return requests


@pytest.mark.parametrize("chunk_tokens", [1, 16, 48])
@given(data=st.data())
@examples(60)
def test_with_room_for_all_sglang_finds_no_less_than_vllm_with_blocks_of_16(chunk_tokens, data):
    requests = data.draw(conversations(chunk_tokens))
    to_the_token = one_by_one(SglangCache(16000), requests)
    in_blocks = one_by_one(VllmCache(1000, 16), requests)
    assert all(tokens >= blocks for tokens, blocks in zip(to_the_token, in_blocks, strict=True))


def test_sglang_finds_the_tokens_of_a_block_that_vllm_does_not():
    words = list(range(40))
    requests = [Request(0, 0.0, 40, 5, words, 1), Request(1, 0.0, 40, 5, [*words[:30], *range(100, 110)], 1)]
    assert one_by_one(SglangCache(1000), requests) == [0, 30]
    assert one_by_one(VllmCache(100, 16), requests) == [0, 16]


def at_once(cache: Cache, requests: Sequence[Request], policy: Any = None, **limits: Any) -> list[Job]:
    """Let all *requests* arrive together; return them in order of admission."""
    engine = Loop(Scheduler(Limits(**(ROOMY | limits)), policy or Fcfs(), cache))
    engine.jobs = [Job.of(request, request.id, cache.block_tokens, block_table=cache.block_table(request))
                   for request in requests]
    for job in engine.jobs:
        engine.scheduler.add(job)
    engine.run()
    return sorted(engine.jobs, key=lambda job: job.rank)


def test_vllm_shares_within_a_step_and_sglang_from_the_next_on():
    twins = [Request(number, 0.0, 33, 5, (7, 8, number), 16) for number in range(2)]
    assert [job.cached for job in at_once(VllmCache(100, 16), twins)] == [0, 32]
    assert [job.cached for job in at_once(SglangCache(1600), twins)] == [0, 0]


def test_who_finds_most_comes_first():
    cache = SglangCache(1000)
    one_by_one(cache, [Request(0, 0.0, 48, 1, "abc", 16), Request(1, 0.0, 16, 1, "x", 16)])
    requests = [Request(number, 0.0, 50, 1, names, 16) for number, names in enumerate(["nop", "xyz", "abz", "abc"])]
    assert [job.number for job in at_once(cache, requests, LongestPrefixFirst(), max_num_seqs=1)] == [3, 2, 1, 0]


def test_one_of_those_that_begin_alike_goes_ahead_where_a_step_cannot_share():
    requests = [Request(number, 0.0, 50, 1, names, 16) for number, names in enumerate(["abx", "aby", "abz", "xyz"])]
    jobs = at_once(SglangCache(1000), requests, LongestPrefixFirst(), max_num_seqs=1)
    assert [(job.number, job.cached) for job in jobs] == [(0, 0), (1, 32), (2, 32), (3, 0)]
    jobs = at_once(SglangCache(1000), requests, LongestPrefixFirst(), max_num_seqs=2)
    assert [(job.number, job.cached) for job in jobs] == [(0, 0), (3, 0), (1, 32), (2, 32)]
    jobs = at_once(VllmCache(100, 16), requests, LongestPrefixFirst(), max_num_seqs=2)
    assert [(job.number, job.cached) for job in jobs] == [(0, 0), (1, 32), (2, 32), (3, 0)]


@pytest.mark.parametrize(("most", "order"), [(4, [0, 4, 1, 2, 3]), (5, [4, 0, 1, 2, 3])])
def test_when_many_wait_the_first_to_come_is_served_first(most, order):
    cache = SglangCache(1000)
    one_by_one(cache, [Request(0, 0.0, 16, 1, "x", 16)])
    requests = [Request(number, 0.0, 20, 1, "abcdx"[number], 16) for number in range(5)]
    jobs = at_once(cache, requests, LongestPrefixFirst(most=most), max_num_seqs=1)
    assert [job.number for job in jobs] == order


def test_policies_may_ask_the_cache_and_are_given_it_first():
    calls = []

    class Curious:
        def attach(self, cache: Cache) -> None:
            calls.append(cache)

        def order(self, job: Job) -> int:
            assert calls
            return job.number

    cache = VllmCache(10, 16)
    at_once(cache, [Request(0, 0.0, 5, 1)], Curious())
    assert calls == [cache]


TRACE = Path(__file__).parents[3] / "traces" / "sessions.jsonl"


@cache
def summary(**serve: Any) -> dict[str, Any]:
    """The figures of a run of the first conversations in traces/, twenty times as dense."""
    return simulate(Scenario.of({
        "model": "llama-3.1-8b", "gpu": "h200", "serve": {"max_model_len": 16384, **serve},
        "workload": {"replay": {"path": str(TRACE), "time_scale": 0.05, "limit": 50}}})).summary


@pytest.mark.parametrize("prefix_cache", CACHES)
@pytest.mark.parametrize("policy", ["fcfs", "longest_prefix_first"])
def test_both_serve_a_trace_and_lose_hits_where_room_is_short(prefix_cache, policy):
    roomy, short = (summary(prefix_cache=prefix_cache, scheduling_policy=policy, num_gpu_blocks_override=blocks)
                    for blocks in (20000, 700))
    assert roomy["completed"] == short["completed"] == 50
    assert 0 < short["prefix_cache_hit_rate"] < roomy["prefix_cache_hit_rate"] < 1


@pytest.mark.parametrize("prefix_cache", CACHES)
def test_an_eviction_is_chosen_by_name(prefix_cache):
    rates = {name: summary(prefix_cache=prefix_cache, num_gpu_blocks_override=700, **serve)["prefix_cache_hit_rate"]
             for name, serve in {"default": {}, "own": {"eviction": {"vllm": "vllm", "sglang": "lru"}[prefix_cache]},
                                 "mru": {"eviction": "mru"},
                                 "elsewhere": {"eviction": "ksim.kv.cache.evictions.by_history:mru"}}.items()}
    assert rates["default"] == rates["own"] != rates["mru"] == rates["elsewhere"]
