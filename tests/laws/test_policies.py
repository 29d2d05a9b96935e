"""Whatever a policy proposes: limits are kept, no block is lost, and every request gets exactly its tokens."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given

from ksim.foundation import catalog
from ksim.scheduling.job import State
from tests.properties import examples
from tests.scheduling.loop import Loop, loop
from tests.scheduling.workloads import Workload, workloads

#: Turns that no workload here can need, however often it has to start over.
AGES = 5000

each_policy = pytest.mark.parametrize("name", catalog.names("scheduling.policies"))


def policy(name: str) -> Any:
    return catalog.find("scheduling.policies", name)()


def play(workload: Workload, name: str) -> Loop:
    """Play *workload* to its end; at every pause, limits and blocks are in order."""
    engine = loop()
    for engine in workload.play(policy(name)):
        check_batch(engine)
        check_blocks(engine)
        assert engine.turns < AGES, "somebody starves"
    return engine


def check_batch(engine: Loop) -> None:
    limits, entries = engine.scheduler.limits, engine.last_schedule.all_entries()
    tokens = Counter({entry.job: entry.tokens for entry in entries})
    assert len(tokens) == len(entries), "a job is in the batch twice"
    assert min(tokens.values(), default=1) > 0
    assert tokens.total() <= limits.max_num_batched_tokens
    assert len(engine.scheduler.running) <= limits.active
    assert not tokens.keys() & set(engine.last_schedule.preempted)


def check_blocks(engine: Loop) -> None:
    """Each block has the users that hold it, and the others are free; who waits holds none."""
    scheduler, pool = engine.scheduler, engine.cache.pool
    users = Counter(block for job in scheduler.running for block in job.block_table.blocks)
    assert [users[block] for block in range(pool.capacity)] == pool.ref_counts
    assert len(users) == pool.used
    assert not any(job.block_table.blocks for job in scheduler.waiting)


@each_policy
@given(workload=workloads(aborts=False, pipelines=True))
@examples(60)
def test_every_request_gets_exactly_its_tokens(name, workload):
    engine = play(workload, name)
    for job, arrival in zip(engine.jobs, sorted(workload.arrivals, key=lambda arrival: arrival.turn), strict=True):
        tokens = min(arrival.output, engine.scheduler.limits.max_model_len - arrival.prompt)
        assert (job.state, job.sampled) == (State.DONE, tokens)
    assert sorted(job.number for job in engine.finished) == list(range(len(engine.jobs)))
    assert engine.cache.pool.used == 0


@each_policy
@given(workload=workloads(pipelines=True))
@examples(60)
def test_aborts_disturb_nobody_else(name, workload):
    engine = play(workload, name)
    assert all(job.state is State.DONE for job in engine.jobs)
    dropped = {number for _, number, _ in workload.aborts}
    assert {job.number for job in engine.jobs} <= {job.number for job in engine.finished} | dropped
    assert engine.cache.pool.used == 0


@each_policy
@given(workload=workloads(pipelines=True))
@examples(20)
def test_equal_runs_are_equal(name, workload):
    one, other = ([(job.number, job.emitted, job.preemptions) for job in play(workload, name).finished]
                  for _ in range(2))
    assert one == other
