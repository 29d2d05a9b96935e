"""SGLang's radix cache with host memory behind it, by hand and as laws."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.kv_offload.hicache.cache import WRITE_POLICIES, HiCache, HostNode
from ksim.kv_offload.hicache.connector import HicacheConnector
from ksim.scheduling.connector import ConnectorOutput, Copy
from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.scheduling.job import State
from ksim.scheduling.limits import Limits
from ksim.scheduling.policies.fcfs import Fcfs
from ksim.scheduling.schedule import Schedule
from ksim.testing.loop import ROOMY, Loop
from tests.kv_offload.engines import Workers, settle
from tests.properties import examples

A, B, C = ([(name, place) for place in range(8)] for name in "abc")


class Copying(Workers):
    """Only loads that wait are received; those of HiCache end with their step."""

    def work(self, schedule: Schedule, turn: int) -> ConnectorOutput:
        return ConnectorOutput(copied=super().work(schedule, turn).copied)


def engine(slots: int = 60, host: int = 1000, policy: str = "write_through", turns: Any = (1,), **limits: Any) -> Loop:
    cache, workers = HiCache(slots, host_capacity=host, write_policy=policy), Copying(turns)
    link: Any = workers
    return Loop(ConnectorScheduler(Limits(**(ROOMY | limits)), Fcfs(), cache, connector=HicacheConnector(cache)),
                connector=link)


def serve(loop: Loop, names: Any, own: int = 4, output: int = 2) -> tuple[int, int]:
    """Serve a prompt of *names*, of 4 tokens each, and *own* tokens; return what it found and what it loaded."""
    job = add(loop, names, own, output)
    settle(loop)
    return job.cached, sum(copy.tokens for copy in copies(loop) if copy.loads and copy.job is job)


def add(loop: Loop, names: Any, own: int, output: int) -> Any:
    from ksim.flow.request import Request
    from ksim.scheduling.job import Job

    number = len(loop.jobs)
    request = Request(number, float(number), 4 * len(names) + own, output, (*names, ("own", number)), 4)
    job = Job.of(request, number, 1, block_table=loop.cache.block_table(request))
    loop.jobs.append(job)
    loop.scheduler.add(job)
    return job


def copies(loop: Loop) -> list[Copy]:
    every: Any = loop.connector
    begun: list[Copy] = every.begun
    return begun


def test_what_the_gpu_evicts_comes_back_from_host_memory():
    loop = engine()
    assert serve(loop, A) == (0, 0)
    assert serve(loop, B) == (0, 0)
    assert serve(loop, A) == (0, 32)
    assert serve(loop, A) == (32, 0)


def test_a_load_is_hurried_and_its_job_computes_the_rest_in_the_same_step():
    loop = engine()
    serve(loop, A)
    serve(loop, B)
    job = add(loop, A, 4, 2)
    assert loop.turn() == {job: 4}
    (load,) = [copy for copy in loop.last_schedule.copies if copy.loads]
    assert load.number in loop.last_schedule.hurried and load.tokens == 32


def test_less_than_the_threshold_is_computed_again():
    loop = engine(slots=20)
    serve(loop, A[:2])
    serve(loop, B[:3])
    assert serve(loop, A[:2]) == (0, 0)


@pytest.mark.parametrize(("policy", "written"), [("write_through", 1), ("write_through_selective", 2)])
def test_a_prompt_is_written_once_it_was_inserted_so_often(policy, written):
    loop = engine(policy=policy)
    job = add(loop, A, 4, 3)  # inserted when its prompt is computed, and when it has ended
    turns = 0
    while not copies(loop):
        loop.turn()
        turns += 1
    assert job.state is (State.RUNNING if written == 1 else State.DONE)
    settle(loop)


def test_write_back_writes_what_is_evicted_before_others_use_its_room():
    loop = engine(policy="write_back")
    serve(loop, A)
    assert not copies(loop)
    job = add(loop, B, 4, 2)
    loop.turn()
    numbers = [copy.number for copy in loop.last_schedule.copies]
    assert numbers and {*numbers} <= {*loop.last_schedule.hurried}
    settle(loop)
    assert job.state is State.DONE and serve(loop, A) == (0, 32)


def test_a_node_stays_on_the_gpu_until_it_is_written():
    loop = engine(turns=[8])
    add(loop, A, 4, 1)
    loop.turn()
    loop.turn()
    other = add(loop, B, 4, 1)
    assert loop.turns_of(other, 4) == [0, 0, 0, 0]
    settle(loop)
    assert other.state is State.DONE


def test_host_memory_loses_whole_leaves_least_recently_used_first():
    loop = engine(host=80)
    serve(loop, A)
    serve(loop, B)
    serve(loop, C)  # drives A out of host memory, after the GPU
    assert serve(loop, B) == (0, 32) and serve(loop, A) == (0, 0)


@given(wanted=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.integers(1, 9), st.integers(1, 6),
                                 st.integers(0, 4)), min_size=1, max_size=14),
       policy=st.sampled_from([*WRITE_POLICIES]), slots=st.integers(48, 90), host=st.integers(0, 200),
       turns=st.lists(st.integers(1, 5), min_size=1, max_size=3), ahead=st.booleans())
@examples(150)
def test_every_token_has_its_place_and_every_request_its_tokens(wanted, policy, slots, host, turns, ahead):
    loop = engine(slots, host, policy, turns, async_scheduling=ahead)
    for name, blocks, own, output, pause in wanted:
        add(loop, [(name, place) for place in range(blocks)], own, output)
        for _ in range(pause):
            loop.turn()
            check(loop.cache)
    settle(loop)
    check(loop.cache)
    assert [job.sampled for job in loop.jobs] == [output for _, _, _, output, _ in wanted]
    assert loop.cache.pool.used == 0


def check(cache: HiCache) -> None:
    """Each node is somewhere, the GPU has whole prefixes, and both memories have as much as they count."""
    nodes, stack = list[HostNode](), [*cache.tree.root.children.values()]
    while stack:
        node: Any = stack.pop()
        nodes.append(node)
        stack += node.children.values()
    assert all(node.resident or (node.backed and not node.locks) for node in nodes)
    assert all(cache.tree.root is node.parent or node.parent.resident for node in nodes if node.resident)
    assert cache.host_free == cache.host_capacity - sum(node.tokens for node in nodes if node.backed) >= 0
    assert cache.pool.evictable == sum(node.tokens for node in nodes if node.resident and not node.locks)
    held = cache.capacity - cache.pool.empty
    assert held >= sum(node.tokens for node in nodes if node.resident)
