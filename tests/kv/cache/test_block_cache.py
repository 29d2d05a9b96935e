"""The cache block by block: what is found again, what is lost first, and what is refused."""

from collections.abc import Hashable, Sequence

import pytest

from ksim.kv.cache import BlockTable, PrefixHit
from ksim.kv.cache.block_cache import BlockCache

BLOCK = 4


def cache(blocks: int = 10, *, prefix_caching: bool = True) -> BlockCache:
    return BlockCache(blocks, BLOCK, prefix_caching)


def start(kv: BlockCache, content: Sequence[Hashable], tokens: int) -> BlockTable:
    """Hold *tokens* tokens of *content*, from what is cached of it, and publish all full blocks."""
    table = BlockTable(content)
    kv.attach_prefix(table, kv.find_prefix(table, tokens))
    assert kv.allocate(table, tokens)
    kv.publish(table, tokens)
    return table


def hit(kv: BlockCache, content: Sequence[Hashable], tokens: int) -> int:
    """How many tokens of a prompt are found."""
    return kv.find_prefix(BlockTable(content), tokens).tokens


def free_blocks(kv: BlockCache) -> list[int]:
    """The free blocks in the order in which they would be taken; empties the pool."""
    return [kv.pool.take() for _ in range(kv.pool.free)]


def test_blocks_are_counted_up():
    assert [cache().blocks(tokens) for tokens in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_growing_is_all_or_nothing():
    kv = cache(3)
    table = start(kv, "", 5)
    assert not kv.allocate(table, 13)
    assert (len(table.blocks), kv.pool.free) == (2, 1)
    assert kv.allocate(table, 12)
    assert kv.pool.free == 0


def test_growing_into_a_block_that_is_there_costs_nothing():
    kv = cache()
    table = start(kv, "", 5)
    assert kv.allocate(table, 8)
    assert len(table.blocks) == 2


def test_a_prefix_is_found_in_whole_blocks():
    kv = cache()
    start(kv, "ab", 11)
    assert hit(kv, "abc", 13) == 8
    assert hit(kv, "ax", 13) == 4
    assert hit(kv, "x", 13) == 0


def test_a_hit_never_covers_the_last_token():
    kv = cache()
    start(kv, "abc", 12)
    assert [hit(kv, "abc", tokens) for tokens in (8, 9, 12, 13)] == [4, 8, 8, 12]


def test_looking_up_changes_nothing():
    kv = cache(4)
    kv.free(start(kv, "ab", 8))
    for _ in range(3):
        hit(kv, "ab", 9)
    assert kv.pool.free == 4
    assert free_blocks(kv) == [2, 3, 1, 0]


def test_blocks_can_be_found_as_soon_as_they_are_published():
    kv = cache()
    table = BlockTable("ab")
    kv.attach_prefix(table, PrefixHit(0))
    kv.allocate(table, 8)
    assert hit(kv, "ab", 9) == 0
    kv.publish(table, 7)
    assert hit(kv, "ab", 9) == 4
    kv.publish(table, 8)
    assert hit(kv, "ab", 9) == 8


def test_publishing_again_what_is_published_changes_nothing():
    kv = cache()
    table = start(kv, "ab", 8)
    kv.publish(table, 8)
    kv.publish(table, 5)
    assert [node.blocks for node in kv.tree] == [[0], [1]]


def test_hits_are_shared_and_stay_until_all_users_have_left():
    kv = cache(4)
    first = start(kv, "ab", 9)
    second = start(kv, "ab", 9)
    assert second.blocks[:2] == first.blocks[:2]
    assert kv.pool.ref_counts == [2, 2, 1, 1]
    kv.free(first)
    assert (kv.pool.used, kv.pool.ref_counts[:2]) == (3, [1, 1])


def test_equal_blocks_of_two_at_once_are_not_merged_and_the_first_published_is_hit():
    kv = cache()
    one, other = BlockTable("a"), BlockTable("a")
    for table in (one, other):
        kv.attach_prefix(table, PrefixHit(0))
        kv.allocate(table, 4)
    kv.publish(other, 4)
    kv.publish(one, 4)
    assert one.blocks != other.blocks
    assert start(kv, "a", 5).blocks[0] == other.blocks[0]


def test_blocks_that_hold_nothing_go_to_the_front_and_the_others_to_the_back_each_last_first():
    kv = cache(6)
    table = start(kv, "ab", 14)
    assert table.blocks == [0, 1, 2, 3]
    kv.free(table)
    # the third is full, but only this request's own: it can still be found when this request comes back
    assert free_blocks(kv) == [3, 4, 5, 2, 1, 0]


def test_without_prefix_caching_the_free_blocks_are_a_stack():
    kv = cache(5, prefix_caching=False)
    kv.free(start(kv, "abc", 12))
    assert hit(kv, "abc", 13) == 0
    assert free_blocks(kv) == [2, 1, 0, 3, 4]


def test_taking_a_block_forgets_what_it_held_and_a_prompts_tail_goes_first():
    kv = cache(4)
    kv.free(start(kv, "abcd", 16))
    assert hit(kv, "abcd", 17) == 16
    start(kv, "x", 4)
    assert hit(kv, "abcd", 17) == 12
    start(kv, "y", 8)
    assert hit(kv, "abcd", 17) == 4


def test_what_was_freed_least_recently_goes_first_even_if_it_was_looked_up_since():
    kv = cache(2)
    kv.free(start(kv, "a", 4))
    kv.free(start(kv, "b", 4))
    assert hit(kv, "a", 5) == 4
    start(kv, "c", 4)
    assert (hit(kv, "a", 5), hit(kv, "b", 5)) == (0, 4)


def test_a_hit_on_a_free_block_takes_it_out_of_the_queue():
    kv = cache(3)
    kv.free(start(kv, "a", 4))
    table = start(kv, "a", 5)
    assert table.blocks == [0, 1]
    kv.free(table)
    assert free_blocks(kv) == [1, 2, 0]


def test_hits_that_nobody_uses_take_room_too():
    kv = cache(3)
    kv.free(start(kv, "ab", 8))
    prefix = kv.find_prefix(BlockTable("ab"), 12)
    assert (prefix.tokens, kv.pool.free) == (8, 3)
    assert kv.can_allocate(prefix, 12)
    assert not kv.can_allocate(prefix, 13)
    assert not kv.can_allocate(prefix, 12, spare=1)


def test_hits_that_others_use_take_no_room():
    kv = cache(3)
    start(kv, "ab", 8)
    prefix = kv.find_prefix(BlockTable("ab"), 12)
    assert kv.can_allocate(prefix, 12)
    assert not kv.can_allocate(PrefixHit(0), 12)


def test_a_request_that_comes_back_finds_what_it_sampled():
    kv = cache()
    table = start(kv, "a", 11)
    kv.free(table)
    assert kv.find_prefix(table, 12).tokens == 8
    assert hit(kv, "a", 12) == 4


def test_freeing_twice_gives_nothing_back_twice():
    kv = cache(4)
    table = start(kv, "a", 8)
    kv.free(table)
    kv.free(table)
    assert kv.pool.free == 4


def test_a_table_that_is_in_use_takes_no_hit():
    kv = cache()
    table = start(kv, "a", 8)
    with pytest.raises(AssertionError, match="admitted again"):
        kv.attach_prefix(table, PrefixHit(0))


def test_nothing_is_published_for_a_table_without_blocks():
    with pytest.raises(AssertionError, match="without blocks"):
        cache().publish(BlockTable("a"), 4)


@pytest.mark.parametrize(("unhashed_first", "reused"), [(True, [2, 3, 1]), (False, [3, 2, 1])])
def test_where_a_freed_block_without_content_goes(unhashed_first, reused):
    """Blocks 0 and 1 are full, 2 is not: in vLLM 0.33 it is taken next, in older releases after block 3, never used."""
    cache = BlockCache(4, 4, unhashed_first=unhashed_first)
    table = BlockTable()
    cache.attach_prefix(table, cache.find_prefix(table, 10))
    assert cache.allocate(table, 10)
    cache.publish(table, 10)
    cache.free(table)
    assert [cache.pool.take() for _ in reused] == reused
