"""SGLang's radix cache with host memory behind it, by hand and as laws."""


import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.kv.offload.hicache.cache import WRITE_POLICIES
from ksim.scheduling.job import State
from tests.kv.offload.engines import settle
from tests.kv.offload.hicache import A, B, C, add, check, copies, engine, serve
from tests.properties import examples


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
