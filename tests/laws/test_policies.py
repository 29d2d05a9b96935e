"""Whatever a policy proposes: limits are kept, no block is lost, and every request gets exactly its tokens."""


import pytest
from hypothesis import given

from ksim.foundation import catalog
from ksim.scheduling.job import State
from ksim.testing.loop import Loop, loop
from tests.laws.limits import AGES, check_batch, check_blocks, policy
from tests.properties import examples
from tests.scheduling.workloads import Workload, workloads

each_policy = pytest.mark.parametrize("name", catalog.names("scheduling.policies"))


def play(workload: Workload, name: str) -> Loop:
    """Play *workload* to its end; at every pause, limits and blocks are in order."""
    engine = loop()
    for engine in workload.play(policy(name)):
        check_batch(engine)
        check_blocks(engine)
        assert engine.turns < AGES, "somebody starves"
    return engine


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
