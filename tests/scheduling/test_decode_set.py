"""Jobs that decode are not counted step by step: nobody can tell from the schedules."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
from attrs import frozen
from hypothesis import given

from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.vllm import VllmCache
from ksim.scheduling.job import Job
from ksim.scheduling.policies.orders import Fcfs, Priority
from ksim.testing.loop import loop
from tests.properties import examples
from tests.scheduling.proposing import PAUSES, Proposing, ProposingFcfs, seen
from tests.scheduling.workloads import workloads


@frozen
class FewestSampled:
    """Its victim depends on what is counted anew in every step."""

    def order(self, job: Job) -> tuple[int, int]:
        return job.num_tokens, job.number

    def victim(self, running: Sequence[Job]) -> Job:
        return min(running, key=lambda job: (job.sampled, job.backlog, job.num_computed_tokens, -job.number))


class ProposingPriority(Proposing, Priority):
    pass


class ProposingFewestSampled(Proposing, FewestSampled):
    pass


def emitted(job: Job) -> list[int]:
    """The turns from which its tokens came."""
    return [turn for run in job.emitted for turn in range(run.first, run.last + 1, run.every or 1)]


def history(job: Job) -> tuple[Any, ...]:
    counts = job.num_tokens, job.num_computed_tokens, job.num_output_placeholders
    return *counts, job.state, job.step, job.decoding, job.preemptions, job.cached


@pytest.mark.parametrize(("policy", "proposing"), [
    (Fcfs(), ProposingFcfs()), (Priority(), ProposingPriority()), (FewestSampled(), ProposingFewestSampled())])
@pytest.mark.parametrize("cache", [BlockCache, VllmCache])
@given(workload=workloads())
@examples(120)
def test_schedules_are_those_of_counting_every_job_in_every_step(policy, proposing, cache, workload):
    short = long = loop()
    for short, long in islice(zip(workload.play(policy, cache), workload.play(proposing), strict=True), PAUSES):
        assert seen(short) == seen(long)
    for one, other in zip(short.jobs, long.jobs, strict=True):
        assert emitted(one) == emitted(other)
        assert history(one) == history(other)


def test_when_one_that_decodes_gives_way_what_it_had_returns_to_the_budget():
    engine = loop(policy=Priority(), blocks=6, max_num_batched_tokens=12, max_num_seqs=12,
                  long_prefill_token_threshold=8, scheduler_reserve_full_isl=False)
    a = engine.add(4, priority=5)
    engine.turn()
    b, c = engine.add(40), engine.add(40)
    assert engine.turn() == {a: 1, b: 8, c: 3}
    assert engine.turn() == {b: 8, c: 4}
    assert engine.last_schedule.preempted == [a]


def test_with_a_budget_of_fewer_tokens_than_jobs_the_first_get_theirs():
    engine = loop(max_num_batched_tokens=2)
    a, b, c = (engine.add(1, output=3) for _ in range(3))
    assert [engine.turn() for _ in range(5)] == [{a: 1, b: 1}, {a: 1, b: 1}, {a: 1, b: 1}, {c: 1}, {c: 1}]


def test_a_run_of_decodes_is_noted_as_one():
    engine = loop(async_scheduling=True)
    job = engine.add(5, output=50)
    engine.run()
    assert [(run.first, run.last) for run in job.emitted] == [(1, 50)]
