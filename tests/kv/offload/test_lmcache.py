"""LMCache's connector: what it loads within a step, what it stores, and what its store keeps."""

from collections import OrderedDict
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as some

from ksim.flow.request import BlockKeys
from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.offload.lmcache import LmcacheConnector, LmcacheStore
from ksim.scheduling.connector import ConnectorOutput, Copy
from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.scheduling.job import Limits, Schedule, State
from ksim.scheduling.policies.orders import Fcfs
from ksim.testing.loop import ROOMY, Loop
from tests.properties import examples

BLOCK, PER_CHUNK = 4, 2
CHUNK = BLOCK * PER_CHUNK


@define(eq=False)
class Workers:
    """Ends each copy in the turn that hurries it, and keeps all."""

    copies: list[Copy] = field(factory=list)
    pending: dict[int, Copy] = field(factory=dict)

    def work(self, schedule: Schedule, turn: int) -> ConnectorOutput:
        self.copies += schedule.copies
        self.pending.update((copy.number, copy) for copy in schedule.copies)
        assert {copy.number for copy in schedule.copies if copy.loads} <= {*schedule.hurried}
        ended = [self.pending.pop(number) for number in schedule.hurried]
        return ConnectorOutput(copied=[copy.number for copy in ended])


def engine(chunks: int = 100, blocks: int = 200, prefix_caching: bool = True, limits: Any = (), **options: Any) -> Loop:
    connector = LmcacheConnector(LmcacheStore(chunks), BlockKeys(BLOCK), PER_CHUNK, prefix_caching=prefix_caching,
                                 **options)
    cache, workers = BlockCache(blocks, BLOCK, prefix_caching), Workers()
    scheduler = ConnectorScheduler(Limits(**(ROOMY | dict(limits))), Fcfs(), cache, connector=connector)
    return Loop(scheduler, connector=workers)


def settle(loop: Loop) -> None:
    while loop.scheduler.has_requests or not loop.idle:
        loop.turn()
        assert loop.turns < 10_000


def copies(loop: Loop, job: Any, loads: bool) -> list[list[int]]:
    workers: Any = loop.connector
    return [[*copy.chunks] for copy in workers.copies if copy.job is job and copy.loads is loads]


class TestLoads:
    """Without a prefix cache on the GPU, so that all comes from the store."""

    def test_a_prompt_that_was_stored_is_loaded_within_the_step_that_admits_its_job(self):
        loop = engine(prefix_caching=False)
        first = loop.add(20, 1, chunks="abcde")
        settle(loop)
        assert copies(loop, first, loads=False) == [[0, 1]]  # the last, partial chunk is not stored
        second = loop.add(20, 1, chunks="abcde")
        assert loop.turn() == {second: 4} and second.cached == 0
        settle(loop)
        assert copies(loop, second, loads=True) == [[0, 1]] and copies(loop, second, loads=False) == []

    def test_the_last_token_of_a_whole_hit_is_computed_again(self):
        loop = engine(prefix_caching=False)
        loop.add(16, 1, chunks="abcd")
        settle(loop)
        again = loop.add(16, 1, chunks="abcd")
        assert loop.turn() == {again: 1}
        settle(loop)
        assert copies(loop, again, loads=True) == [[0, 1]]

    def test_chunks_are_loaded_whole_though_the_gpu_has_their_first_blocks(self):
        loop = engine(blocks=8)
        loop.add(20, 1, chunks="abcde")
        settle(loop)
        loop.add(20, 1, chunks="vwxyz")  # takes blocks of the first prompt, tails first
        settle(loop)
        again = loop.add(20, 1, chunks="abcde")
        assert loop.turn() == {again: 4} and again.cached == 12
        settle(loop)
        assert copies(loop, again, loads=True) == [[1]]

    def test_fewer_tokens_than_asked_for_are_not_loaded_nor_stored_again(self):
        loop = engine(prefix_caching=False, min_load=CHUNK + 1)
        loop.add(12, 1, chunks="abc")
        settle(loop)
        again = loop.add(12, 1, chunks="abc")
        assert loop.turn() == {again: 12}
        settle(loop)
        assert copies(loop, again, loads=True) == copies(loop, again, loads=False) == []


class TestStores:
    def test_chunks_are_stored_as_prompts_are_computed_and_outputs_are_not(self):
        loop = engine(limits={"max_num_batched_tokens": 12})
        job = loop.add(28, 30, chunks="abcdefg")
        settle(loop)
        assert copies(loop, job, loads=False) == [[0], [1, 2]]

    @pytest.mark.parametrize("prefix_caching", [True, False])
    def test_outputs_are_stored_where_asked(self, prefix_caching):
        loop = engine(save_decode=True, prefix_caching=prefix_caching)
        job = loop.add(12, 13, chunks="abcdef")
        settle(loop)
        assert copies(loop, job, loads=False) == [[0], [1], [2]]

    def test_the_next_batch_waits_for_stores(self):
        loop = engine()
        loop.add(8, 5, chunks="ab")
        loop.turn()
        (store,) = loop.last_schedule.copies
        assert not loop.last_schedule.hurried and store.tokens == CHUNK
        loop.turn()
        assert loop.last_schedule.hurried == [store.number]

    def test_where_room_is_lacking_the_first_chunks_are_stored_and_the_others_never(self):
        loop = engine(chunks=2, prefix_caching=False)
        job = loop.add(40, 1, chunks="abcdefghij")
        settle(loop)
        assert copies(loop, job, loads=False) == [[0, 1]]


class TestStore:
    def filled(self, capacity, *groups):
        store = LmcacheStore(capacity)
        for keys in groups:
            assert store.make_room(len(keys)) == len(keys)
            store.stored(keys)
        return store

    def test_new_chunks_leave_heads_first_and_those_looked_up_tails_first(self):
        store = self.filled(4, [1, 2], [3, 4])
        store.make_room(1)
        store.stored([5])
        assert [key for key in range(6) if key in store] == [2, 3, 4, 5]
        assert store.look_up([3, 4]) == 2
        store.unpin([3, 4])
        store.make_room(3)
        assert [key for key in range(6) if key in store] == [3]

    def test_pinned_chunks_stay(self):
        store = self.filled(3, [1, 2, 3])
        assert store.look_up([1, 2, 9]) == 2
        assert store.make_room(3) == 1 and 1 in store and 2 in store and 3 not in store

    def test_a_chunk_that_two_stored_at_once_is_there_once(self):
        store = LmcacheStore(3)
        assert store.make_room(1) == store.make_room(1) == 1
        store.stored([7])
        store.stored([7])
        assert len(store) == 1 and store.look_up([7]) == 1


#: A request: when it comes, whose prompt it shares, how many blocks of it, its own tokens, its output.
requests = some.lists(some.tuples(some.integers(0, 40), some.integers(0, 2), some.integers(0, 8), some.integers(1, 9),
                                  some.integers(1, 12)), min_size=1, max_size=10)


@examples(120)
@given(requests, some.integers(1, 20), some.booleans(), some.sampled_from([8, 20, 1000]), some.booleans(),
       some.sets(some.integers(0, 50), max_size=2), some.booleans())
def test_loads_are_what_was_hit_and_nothing_is_lost(wanted, chunks, caching, budget, ahead, aborts, save_decode):
    limits = {"max_num_batched_tokens": budget, "async_scheduling": ahead}
    loop = engine(chunks=chunks, blocks=24, prefix_caching=caching, limits=limits, save_decode=save_decode)
    connector: Any = loop.scheduler.connector
    coming = sorted(enumerate(wanted), key=lambda item: item[1][0])
    while coming or loop.scheduler.has_requests or not loop.idle:
        while coming and coming[0][1][0] <= loop.turns:
            number, (_, owner, shared, own, output) = coming.pop(0)
            names = [*((owner, place) for place in range(shared)), *((number, place) for place in range(own // BLOCK))]
            loop.add(shared * BLOCK + own, output, chunks=names)
        if loop.turns in aborts and loop.jobs:
            loop.scheduler.abort(loop.jobs[-1])
        loop.schedule()
        for load, copy in zip(loop.last_schedule.loads, (c for c in loop.last_schedule.copies if c.loads), strict=True):
            begin, end = copy.chunks[0] * CHUNK, (copy.chunks[-1] + 1) * CHUNK
            assert begin <= load.start < begin + CHUNK and end - load.start - load.tokens in (0, 1)
            assert copy.tokens == end - load.start and end - begin == BLOCK * len(copy.blocks) and not load.asynchronous
            assert copy.blocks == load.job.block_table.blocks[begin // BLOCK: end // BLOCK]
        assert len(connector.store) <= connector.store.capacity
        loop.update()
        assert loop.turns < 2000
    assert all(job.state is State.DONE for job in loop.jobs)
    assert (loop.cache.pool.used, connector.store.storing, connector._jobs) == (0, 0, {})
    assert not any(connector.store._pins.values())


@examples(60)
@given(some.lists(some.text("ab", min_size=1, max_size=6), min_size=1, max_size=10), some.integers(1, 8))
def test_one_after_the_other_they_load_what_an_lru_of_chunks_would_hit(prompts, chunks):
    loop, lru = engine(chunks=chunks, prefix_caching=False), OrderedDict[str, None]()
    for names in prompts:
        job = loop.add(len(names) * CHUNK + 1, 1, chunks=[(name, part) for name in names for part in range(PER_CHUNK)])
        settle(loop)
        prefixes = [names[:end] for end in range(1, len(names) + 1)]
        hits = next((place for place, key in enumerate(prefixes) if key not in lru), len(prefixes))
        for key in reversed(prefixes[:hits]):
            lru.move_to_end(key)
        fresh = prefixes[hits:][:chunks]
        while len(lru) + len(fresh) > chunks:
            lru.popitem(last=False)
        for key in fresh:
            lru.pop(key, None)
        lru.update(dict.fromkeys(fresh))
        assert copies(loop, job, loads=True) == ([[*range(hits)]] if hits else [])
