"""Whatever an engine that offloads is asked for: what its store and its index hold, and what it loads."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation import catalog
from ksim.scheduling.job import State
from ksim.testing.loop import Loop
from tests.kv.offload.engines import connector_of, engine, index_of, loaded, settle
from tests.properties import examples

EVICTIONS = catalog.names("kv.offload.evictions")

#: A request: when it comes, whose prompt it shares, how many blocks of it, its own tokens, its output.
requests = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2), st.integers(0, 6), st.integers(1, 9),
                              st.integers(1, 12)), min_size=1, max_size=12)
settings = st.fixed_dictionaries({
    "chunks": st.integers(1, 30), "eviction": st.sampled_from(EVICTIONS), "threshold": st.integers(0, 2),
    "turns": st.lists(st.integers(1, 9), min_size=1, max_size=3), "blocks": st.integers(13, 30),
    "prefix_caching": st.booleans(), "blocks_per_chunk": st.integers(1, 3), "prompt_only": st.booleans(),
    "async_scheduling": st.booleans(), "max_num_batched_tokens": st.sampled_from([8, 32, 1000])})


def names(owner: int, shared: int, own: int, number: int) -> list[Any]:
    return [*((owner, place) for place in range(shared)), *((number, "own", place) for place in range(own // 4))]


def add(loop: Loop, number: int, request: tuple[int, ...]) -> Any:
    _, owner, shared, own, output = request
    return loop.add(4 * shared + own, output, chunks=names(owner, shared, own, number))


@given(settings=settings, wanted=requests, aborts=st.sets(st.integers(0, 60), max_size=3))
@examples(150)
def test_the_index_is_the_store_pins_stay_and_loads_are_what_was_hit(settings, wanted, aborts):
    loop = engine(**settings)
    connector, coming = connector_of(loop), sorted(enumerate(wanted), key=lambda item: item[1][0])
    store, index, chunk = connector.store, index_of(loop), 4 * connector.blocks_per_chunk
    while coming or loop.scheduler.has_requests:
        while coming and coming[0][1][0] <= loop.turns:
            add(loop, *coming.pop(0))
        if loop.turns in aborts and loop.jobs:
            loop.scheduler.abort(loop.jobs[-1])
        begun = len(connector.loads)
        loop.schedule()
        for load in connector.loads[begun:]:
            (copy,) = (copy for copy in loop.last_schedule.copies if copy.loads and copy.job is load.job)
            end = load.start + load.tokens
            assert copy.tokens == load.tokens == 4 * len(copy.blocks)
            assert [*copy.chunks] == [*range(load.start // chunk, end // chunk)] and end % chunk == 0
            assert {*copy.keys} <= index.ready and end <= load.job.num_tokens
        loop.update()
        assert {*store._users} == index.coming | index.ready
        assert {key for key in store._users if store.is_ready(key)} == index.ready
        assert store.storing == len(index.coming)
        assert sum(store.is_idle(key) for key in index.ready) == store._idle
        assert loop.turns < 5000
    assert all(job.state is State.DONE for job in loop.jobs)
    assert (loop.cache.pool.used, store.storing, index.used, store._idle) == (0, 0, [], len(store))
    assert not connector._jobs and not connector._copies.watching and not connector._loading


def hits(wanted: Any, **settings: Any) -> list[int]:
    """How many tokens each request loads, if they come one after the other."""
    loop, tokens = engine(**settings), []
    for number, request in enumerate(wanted):
        job = add(loop, number, request)
        settle(loop)
        tokens.append(loaded(loop, job))
    return tokens


@given(wanted=requests, smaller=st.integers(9, 20), more=st.integers(0, 12), chunk=st.integers(1, 2),
       prompt_only=st.booleans(), budget=st.sampled_from([8, 32, 1000]))
@examples(150)
def test_under_lru_a_bigger_store_never_loads_less(wanted, smaller, more, chunk, prompt_only, budget):
    """This is a law where requests come one after the other, the GPU keeps no prefix, and the smaller store has room
    for all chunks of any one request: then LRU by request is a stack algorithm, as plain LRU is."""
    same: dict[str, Any] = {"blocks_per_chunk": chunk, "prompt_only": prompt_only, "prefix_caching": False,
                            "max_num_batched_tokens": budget}
    few, many = hits(wanted, chunks=smaller, **same), hits(wanted, chunks=smaller + more, **same)
    assert all(less <= least for less, least in zip(few, many, strict=True))


def test_a_store_too_small_for_a_request_can_hit_more_than_a_bigger_one():
    """It refuses the stores of the long request, and keeps what the bigger one evicts for it."""
    short, long = (0, 0, 2, 1, 1), (0, 1, 3, 1, 1)
    wanted = [short, long, short]
    assert hits(wanted, chunks=2, prefix_caching=False) == [0, 0, 8]
    assert hits(wanted, chunks=3, prefix_caching=False) == [0, 0, 0]


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_store_with_room_for_all_hits_all_that_came_before(eviction):
    wanted = [(0, 0, 6, 1, 4), (0, 0, 4, 3, 4), (0, 0, 6, 2, 1)]
    assert hits(wanted, chunks=50, eviction=eviction, prefix_caching=False) == [0, 16, 24]
