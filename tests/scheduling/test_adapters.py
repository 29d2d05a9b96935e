"""LoRA adapters: at most so many in a batch, whose tokens are whose, and what has to be loaded."""

import gzip
import json
from collections import Counter, OrderedDict, deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ksim.flow.request import AdapterLoad, Request
from ksim.kv.cache.vllm import VllmCache
from ksim.scheduling.adapter_scheduler import AdapterScheduler
from ksim.scheduling.adapter_store import AdapterStore
from ksim.scheduling.engine_loop import EngineLoop, ScheduleForecast
from ksim.scheduling.job import Job, Limits, State
from ksim.scheduling.policies.orders import Fcfs
from ksim.scheduling.scheduler import Scheduler
from tests.properties import examples

NAMES = ("", "a", "b", "c", "d", "e")


def store(slots: int, kept: int | None = None) -> AdapterStore:
    return AdapterStore({name: AdapterLoad(name, 8) for name in NAMES[1:]}, slots, slots if kept is None else kept)


class Engine:
    """A scheduler's loop without an engine; requests are (prompt, output, adapter)."""

    def __init__(self, slots, kept=None, blocks=400, adapters=True, kind=AdapterScheduler, **limits):
        limits = Limits(**{"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 512, **limits})
        parts = limits, Fcfs(), VllmCache(blocks, 16)
        self.scheduler = kind(*parts, adapters=store(slots, kept)) if adapters else Scheduler(*parts)
        self.loop, self.jobs, self.schedules, self.turns = EngineLoop(self.scheduler), [], [], 0

    def add(self, prompt, output, adapter="", chunks=()):
        request = Request(len(self.jobs), 0.0, prompt, output, chunks, 16, adapter=adapter)
        self.jobs.append(Job.of(request, len(self.jobs), 16,
                                block_table=self.scheduler.cache.block_table(request.keyed)))
        self.scheduler.add(self.jobs[-1])
        return self.jobs[-1]

    def turn(self):
        schedule = self.loop.begin_turn(float(self.turns)).schedule
        self.schedules.append(schedule)
        entries = [(entry.job, entry.tokens) for entry in schedule.all_entries()]
        batch = schedule.batch()
        if not schedule and self.loop.idle:
            self.loop.in_flight.clear()
        elif self.loop.full:
            self.loop.take_in_oldest()
        self.turns += 1
        return entries, batch

    def run(self, most=5000):
        turns = []
        while any(job.state is not State.DONE for job in self.jobs):
            turns.append(self.turn())
            assert len(turns) < most
        return turns


def test_a_job_whose_adapter_is_one_too_many_is_passed_over_and_others_are_admitted():
    engine = Engine(slots=2)
    a, b = engine.add(5, 3, "a"), engine.add(5, 9, "b")
    c, other, again = engine.add(5, 3, "c"), engine.add(5, 3), engine.add(5, 3, "b")
    assert [job for job, _ in engine.turn()[0]] == [a, b, other, again]
    assert c.passed_over
    while a.state is State.RUNNING:
        engine.turn()
    assert c in [job for job, _ in engine.turn()[0]]


def test_adapters_of_running_jobs_count_also_while_they_are_not_in_the_batch():
    """vLLM 0.33 counts all of `running`: with two stages, a job waits every other step for its token."""
    engine = Engine(slots=1, pipeline_parallel_size=2)
    a, b = engine.add(5, 9, "a"), engine.add(5, 3, "b")
    assert [job for job, _ in engine.turn()[0]] == [a]
    assert engine.turn()[0] == []
    assert b.state is State.WAITING


def test_a_preempted_job_waits_for_a_slot_like_any_other():
    engine = Engine(slots=1, blocks=6, max_num_batched_tokens=64)
    first, second, other = engine.add(40, 40, "a"), engine.add(40, 20, "a"), engine.add(8, 8, "b")
    turns = engine.run()
    assert second.preemptions and other.state is State.DONE
    assert all(len({job.request.adapter for job, _ in entries}) <= 1 for entries, _ in turns)
    assert first.sampled == 40


requests = some.lists(some.tuples(some.integers(1, 90), some.integers(1, 30), some.sampled_from(NAMES)), min_size=1,
                      max_size=14)
shapes = some.fixed_dictionaries({
    "slots": some.integers(1, 4), "async_scheduling": some.booleans(),
    "max_num_batched_tokens": some.sampled_from([16, 64]), "max_num_seqs": some.integers(1, 8)})


@given(requests=requests, shape=shapes, blocks=some.sampled_from([9, 400]), later=some.integers(0, 12))
@examples(60)
def test_a_batch_has_no_more_adapters_than_slots_and_tokens_by_adapter_add_up(requests, shape, blocks, later):
    engine = Engine(**shape, blocks=blocks)
    for request in requests[later:]:
        engine.add(*request)
    turns = [engine.turn() for _ in range(3)]
    for request in requests[:later]:
        engine.add(*request)
    turns += engine.run()
    for entries, batch in turns:
        tokens = Counter()
        for job, count in entries:
            tokens[job.request.adapter] += count
        base = tokens.pop("", 0)
        assert len(tokens) <= shape["slots"]
        assert sorted(tokens.values(), reverse=True) == list(batch.adapters)
        assert sum(batch.adapters) + base == batch.tokens
    assert sum(batch.tokens for _, batch in turns) >= sum(prompt + output - 1 for prompt, output, _ in requests)


@given(requests=requests, shape=shapes, kept=some.integers(0, 3))
@examples(60)
def test_loads_are_the_misses_of_a_cache_that_forgets_what_was_used_longest_ago(requests, shape, kept):
    """Replayed from the batches alone, with a list for each place."""
    slots = shape["slots"]
    engine = Engine(**shape, kept=slots + kept)
    for request in requests:
        engine.add(*request)
    memory, gpu = list(NAMES[1:][-(slots + kept):]), list(NAMES[1:][-slots:])
    engine.run()
    for schedule in engine.schedules:
        loaded = []
        for name in OrderedDict.fromkeys(entry.job.request.adapter for entry in schedule.all_entries()):
            if not name:
                continue
            read = name not in memory
            if read and len(memory) == slots + kept:
                gone = memory.pop(0)
                gpu = [other for other in gpu if other != gone]
            memory = [*(other for other in memory if other != name), name]
            if name not in gpu:
                loaded.append((name, read))
                gpu = gpu[len(gpu) >= slots:]
            gpu = [*(other for other in gpu if other != name), name]
        assert [(load.name, load.read) for load in schedule.loaded] == loaded


@given(requests=requests, shape=shapes)
@examples(40)
def test_where_every_adapter_has_a_slot_schedules_are_those_without_adapters(requests, shape):
    engines = Engine(**{**shape, "slots": 5}), Engine(**shape, adapters=False)
    for engine in engines:
        for request in requests:
            engine.add(*request)
    one, other = ([[(job.number, tokens) for job, tokens in entries] for entries, _ in engine.run()]
                  for engine in engines)
    assert one == other


@given(requests=requests, shape=shapes)
@examples(60)
def test_what_is_foreseen_to_repeat_repeats(requests, shape):
    """With jobs that wait for a slot: they are passed over again, or refused again."""
    engine = Engine(**shape)
    for request in requests:
        engine.add(*request)
    forecast, left, before = ScheduleForecast(engine.scheduler), 0, None
    while any(job.state is not State.DONE for job in engine.jobs):
        entries, _ = engine.turn()
        if left > 1:
            assert [job for job, _ in entries] == before
        left, before = max(left - 1, forecast.repeats_left()), [job for job, _ in entries]
        assert engine.turns < 5000


def test_two_adapters_never_share_blocks():
    engine = Engine(slots=2)
    chunks = tuple(range(4))
    for adapter in ("a", "b", ""):
        engine.add(64, 2, adapter, chunks)
        engine.run()
    assert [job.cached for job in engine.jobs] == [0, 0, 0]
    for adapter in ("a", "b", ""):
        engine.add(64, 2, adapter, chunks)
    engine.run()
    assert [job.cached for job in engine.jobs[3:]] == [48, 48, 48]


def test_a_store_begins_with_the_adapters_that_were_loaded_last():
    kept = store(slots=2, kept=3)
    assert [kept.place(name) for name in (*NAMES[1:], "x")] == ["disk", "disk", "memory", "gpu", "gpu", ""]


def test_what_host_memory_forgets_leaves_the_gpu_too():
    kept = store(slots=2, kept=2)
    assert [load.name for load in kept.activate(["a"])] == ["a"]
    assert [kept.place(name) for name in ("a", "d", "e")] == ["gpu", "disk", "gpu"]


#: What the scheduler of vLLM 0.33.0 did on a CPU with made-up output (`vllm.v1.core.sched`, unchanged): 60 random cases
#: with more adapters than slots.  Of each request: the step that it comes before, its tokens, its adapter, and which
#: stream of tokens its prompt begins; of each step: the tokens of each request.
RECORDED = Path(__file__).parents[1] / "golden" / "adapters" / "cases.json.gz"
GOLDEN = json.loads(gzip.decompress(RECORDED.read_bytes()))["cases"]


def replayed(case, kind=AdapterScheduler):
    """The tokens of each request in each step, as ksim schedules *case*."""
    engine = Engine(case["slots"], blocks=case["blocks"], kind=kind, max_num_batched_tokens=case["budget"],
                    max_num_seqs=case["seqs"], async_scheduling=case["async"])
    steps, coming = [], deque(case["requests"])
    while coming or any(job.state is not State.DONE for job in engine.jobs):
        while coming and coming[0]["at"] <= engine.turns:
            request = coming.popleft()
            tokens = [(1000 * request["stream"] + place) % 997 for place in range(request["prompt"])]
            chunks = tuple(tuple(tokens[first:first + 16]) for first in range(0, len(tokens) // 16 * 16, 16))
            engine.add(request["prompt"], request["output"], request["adapter"], chunks)
        entries, _ = engine.turn()
        steps.append({str(job.request.id): tokens for job, tokens in entries})
    return steps


@pytest.mark.parametrize("first", [0, 20, 40])
def test_schedules_are_those_of_vllm(first):
    for case in GOLDEN[first:first + 20]:
        assert replayed(case) == case["expected"]


class Blocking(AdapterScheduler):
    """Ends admission at a job whose adapter is one too many."""

    def _admit(self, job, wish):
        return not self._exceeds(job) and super()._admit(job, wish)


class Unlimited(AdapterScheduler):
    def _exceeds(self, job):
        return False


@pytest.mark.parametrize("wrong", [Blocking, Unlimited])
def test_recorded_schedules_notice_another_rule(wrong):
    assert any(replayed(case, wrong) != case["expected"] for case in GOLDEN[:20])
