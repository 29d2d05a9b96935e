"""Whatever an eviction of a store says: exactly so many idle chunks go, or none; and what vLLM's two say by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation import catalog
from ksim.kv.offload.evictions import RequestAccess
from ksim.kv.offload.evictions.arc import Arc
from ksim.kv.offload.evictions.lru import Lru
from ksim.kv.offload.store import ChunkStore, OfferCounts
from tests.properties import examples

each = pytest.mark.parametrize("name", catalog.names("kv.offload.evictions"))


def store_of(name: str, chunks: int) -> ChunkStore:
    return ChunkStore(chunks, catalog.find("kv.offload.evictions", name)(chunks))


def store(chunks: ChunkStore, keys: list[int], access: RequestAccess | None = None) -> RequestAccess:
    """Have a request store *keys*, and end."""
    access = access or RequestAccess()
    taken = chunks.offer(keys, access, 0)
    assert taken is not None
    chunks.stored(taken)
    chunks.close(access)
    return access


@each
@given(data=st.data(), chunks=st.integers(1, 12))
@examples(30)
def test_as_many_go_as_are_needed_and_none_that_is_used(name, data, chunks):
    kept, loads = store_of(name, chunks), list[tuple[list[int], RequestAccess]]()
    for _ in range(data.draw(st.integers(1, 12))):
        keys = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=6, unique=True))
        access, before = RequestAccess(), {key for key in range(21) if key in kept}
        new, used = {*keys} - before, {key for load, _ in loads for key in load}
        room = chunks - len(before) + len(before - used - {*keys})
        taken, after = kept.offer(keys, access, 0), {key for key in range(21) if key in kept}
        assert len(kept) == len(after) <= chunks and used <= after
        assert (taken is None) == (len(new) > room)
        if taken is None:
            assert after == before
            continue
        assert {*taken} == new and {*keys} <= after
        assert len(before - after) == max(0, len(before) + len(taken) - chunks)
        kept.stored(taken)
        if data.draw(st.booleans()):
            kept.pin(keys, access, 0)
            loads.append((keys, access))
        else:
            kept.close(access)
        if loads and data.draw(st.booleans()):
            ended, access = loads.pop(0)
            kept.unpin(ended)
            kept.close(access)


def test_under_lru_the_tail_of_a_prompt_goes_before_its_head():
    kept = store_of("lru", 4)
    store(kept, [1, 2, 3, 4])
    store(kept, [5, 6])
    assert [key for key in range(1, 7) if key in kept] == [1, 2, 5, 6]


def test_under_lru_the_request_that_ended_first_goes_first_though_the_other_stored_first():
    kept, early, late = store_of("lru", 4), RequestAccess(), RequestAccess()
    kept.stored(kept.offer([1, 2], early, 0))
    kept.stored(kept.offer([3, 4], late, 0))
    kept.close(late)
    kept.close(early)
    store(kept, [5, 6])
    assert [key for key in range(1, 7) if key in kept] == [1, 2, 5, 6]


def test_a_chunk_that_is_offered_again_stays():
    kept = store_of("lru", 3)
    store(kept, [1, 2, 3])
    access = RequestAccess()
    assert kept.offer([3, 4], access, 0) == [4]
    assert (2 in kept, 3 in kept, access.reused) == (False, True, {3})


def test_arc_keeps_what_two_requests_used_and_learns_from_ghosts():
    kept = store_of("arc", 2)
    arc: Any = kept.eviction
    store(kept, [1])
    store(kept, [1])
    assert ([*arc.t1], [*arc.t2]) == ([], [1])
    store(kept, [2])
    store(kept, [3])
    assert ([*arc.t1], [*arc.t2], [*arc.b1], arc.target) == ([3], [1], [2], 0.0)
    store(kept, [2])  # a ghost of T1: it should have been larger
    assert ([*arc.t1], [*arc.t2], [*arc.b1], arc.target) == ([2], [1], [3], 1)


def test_what_a_request_itself_stored_is_no_second_use_for_arc():
    kept, access = store_of("arc", 4), RequestAccess()
    kept.stored(kept.offer([1, 2], access, 0))
    kept.pin([1, 2], access, 0)
    kept.unpin([1, 2])
    kept.close(access)
    arc: Any = kept.eviction
    assert ([*arc.t1], [*arc.t2]) == ([2, 1], [])


def test_neither_evicts_in_part():
    for eviction in (Lru(3), Arc(3)):
        kept = ChunkStore(3, eviction)
        store(kept, [1, 2])
        kept.pin([1], RequestAccess(), 0)
        assert kept.offer([3, 4, 5], RequestAccess(), 0) is None
        assert (1 in kept, 2 in kept, len(kept)) == (True, True, 2)


def test_a_store_with_a_threshold_takes_what_is_offered_so_often():
    kept = ChunkStore(9, Lru(9), OfferCounts(2))
    assert kept.offer([1, 2], RequestAccess(), 0) == []
    assert kept.offer([2, 3], RequestAccess(), 0) == [2]


def test_offers_longest_ago_are_forgotten_but_not_for_the_offer_itself():
    counts = OfferCounts(2, capacity=2)
    counts.offer([1, 2])
    counts.offer([3])
    counts.offer([1])  # counted anew
    assert [counts.suffice(key) for key in (1, 2, 3)] == [False, False, False]
    counts.offer([3, 1])
    counts.offer([3, 1, 4])
    assert [counts.suffice(key) for key in (1, 3, 4)] == [True, True, False]
