"""vLLM's cache in runs of blocks: what is one run and what is cut, what is taken for many, and what may wait."""

from collections.abc import Hashable, Sequence

import pytest

from ksim.flow.request import Request
from ksim.kv.cache import BlockTable, PrefixHit
from ksim.kv.cache.vllm import VllmCache
from tests.kv.cache.trees import nodes

BLOCK = 4


def cache(blocks: int = 40, *, prefix_caching: bool = True) -> VllmCache:
    return VllmCache(blocks, BLOCK, prefix_caching)


def request(names: Sequence[Hashable] = (), prompt: int = 16, chunk_tokens: int = BLOCK) -> Request:
    return Request(0, 0.0, prompt, 40, names, chunk_tokens)


def start(kv: VllmCache, asked: Request, tokens: int = 0) -> BlockTable:
    """Hold the prompt of *asked*, or *tokens* tokens, from what is cached of it, and publish all full blocks."""
    table, tokens = kv.block_table(asked), tokens or asked.prompt
    kv.attach_prefix(table, kv.find_prefix(table, tokens))
    assert kv.allocate(table, tokens)
    kv.publish(table, tokens)
    return table


def hit(kv: VllmCache, names: Sequence[Hashable], prompt: int = 99, chunk_tokens: int = BLOCK) -> int:
    """How many tokens of a prompt are found."""
    return kv.find_prefix(kv.block_table(request(names, prompt, chunk_tokens)), prompt).tokens


def runs(kv: VllmCache) -> list[tuple[int, int, int]]:
    """Where the runs of the tree start and end, and how many extents each has."""
    return sorted((run.start, run.end, len(run.extents)) for run in nodes(kv.tree))


def test_a_prompt_of_many_chunks_is_one_run():
    kv = cache(400)
    table = start(kv, request("abcd", 200, 64))
    assert (list(table.content), table.tokens_per_name, table.named_tokens) == (list("abcd"), 64, 200)
    assert runs(kv) == [(0, 200, 1)]
    assert [hit(kv, names, 300, 64) for names in ("abcd", "abc", "ab", "abxd", "x")] == [200, 192, 128, 128, 0]


def test_what_is_computed_chunk_by_chunk_becomes_one_run_too():
    kv = cache()
    table = start(kv, request("abcd"), 5)
    for tokens in (9, 16):
        kv.allocate(table, tokens)
        kv.publish(table, tokens)
    assert runs(kv) == [(0, 16, 1)]


def test_a_run_is_cut_where_requests_part():
    kv = cache()
    start(kv, request("abcd"))
    start(kv, request("abxy"))
    assert runs(kv) == [(0, 8, 1), (8, 16, 1), (8, 16, 1)]


def test_a_block_of_a_chunk_is_lost_before_the_rest_of_the_chunk():
    kv = cache(8)
    kv.free(start(kv, request("ab", 32, 16)))
    start(kv, request(prompt=12))
    assert hit(kv, "ab", 33, 16) == 20
    assert runs(kv) == [(0, 20, 1)]


def test_chunks_that_are_no_whole_blocks_are_named_block_by_block():
    kv = cache()
    start(kv, request("abcd", 24, 6))
    assert [hit(kv, names, 25, 6) for names in ("abcd", "abcx", "axcd", "x")] == [24, 16, 4, 0]


def test_chunks_of_another_size_are_others_whatever_their_names():
    kv = cache()
    start(kv, request("abcd"))
    assert hit(kv, "abcd", 40, 8) == 0


def test_equal_tokens_computed_at_once_are_copies_of_one_run_as_far_as_they_go():
    kv = cache()
    tables = [kv.block_table(request(names)) for names in ("abcd", "abxy")]
    for table in tables:
        kv.attach_prefix(table, PrefixHit(0))
        kv.allocate(table, 16)
    for table in tables:
        kv.publish(table, 16)
    assert runs(kv) == [(0, 8, 2), (8, 16, 1), (8, 16, 1)]
    assert kv.pool.used == 8


def test_what_is_private_enters_the_tree_when_it_is_given_back_and_is_one_run_until_it_is_lost():
    kv = cache(10)
    table = start(kv, request())
    for tokens in range(17, 30):
        kv.allocate(table, tokens)
        kv.publish(table, tokens)
    assert runs(kv) == []
    kv.free(table, 30)
    assert runs(kv) == [(0, 28, 1)]
    assert kv.find_prefix(table, 30).tokens == 28
    start(kv, request(prompt=20))
    assert kv.find_prefix(table, 30).tokens == 20
    start(kv, request(prompt=20))
    assert kv.find_prefix(table, 30).tokens == 0
    assert runs(kv) == []


def test_a_running_request_would_find_what_is_its_own():
    kv = cache()
    table = start(kv, request("ab", 20))
    assert kv.find_prefix(table, 21).tokens == 20


def test_who_shares_all_that_it_names_is_private_from_then_on():
    kv = cache()
    table = start(kv, request("ab", 20), 6)
    assert not kv.is_private(table)
    kv.allocate(table, 20)
    kv.publish(table, 8)
    assert kv.is_private(table)
    assert kv.is_private(kv.block_table(request()))
    assert VllmCache(4, BLOCK, False).is_private(BlockTable("ab", BLOCK))


def test_reserving_for_many_is_all_or_nothing_and_assigned_later():
    kv = cache(10)
    tables = [start(kv, request(prompt=12)) for _ in range(2)]
    assert not kv.reserve(5)
    assert kv.reserve(3)
    assert (kv.pool.free, kv.pool.used) == (1, 9)
    kv.assign(tables[0], 14)
    kv.assign(tables[1], 20)
    assert [table.num_slots for table in tables] == [16, 20]
    for table in tables:
        kv.free(table, 12)
    assert kv.pool.free == 10


def test_assigning_what_is_held_already_changes_nothing():
    kv = cache()
    table = start(kv, request(prompt=12))
    kv.assign(table, 9)
    assert table.num_slots == 12


def test_without_prefix_caching_nothing_is_kept():
    kv = cache(4, prefix_caching=False)
    kv.free(start(kv, request("abcd")), 16)
    assert (hit(kv, "abcd"), kv.pool.free, runs(kv)) == (0, 4, [])


def test_freeing_twice_gives_nothing_back_twice():
    kv = cache(4)
    table = start(kv, request("ab", 8))
    kv.free(table)
    kv.free(table)
    assert kv.pool.free == 4


def test_a_table_that_is_in_use_takes_no_hit():
    kv = cache()
    table = start(kv, request("ab", 8))
    with pytest.raises(AssertionError, match="admitted again"):
        kv.attach_prefix(table, PrefixHit(0))


def test_names_must_stand_for_whole_blocks():
    with pytest.raises(AssertionError, match="whole blocks"):
        cache().attach_prefix(BlockTable("ab"), PrefixHit(0))


def test_nothing_is_published_for_a_table_without_blocks():
    with pytest.raises(AssertionError, match="without blocks"):
        cache().publish(BlockTable("a", BLOCK), 4)
