"""The pool of blocks: reference counts, and the order in which free blocks are taken again."""

import pytest

from ksim.kv.cache.block_cache import BlockPool


def taken(pool: BlockPool) -> list[int]:
    """Take all that is free."""
    return [pool.take() for _ in range(pool.free)]


def test_fresh_blocks_are_taken_in_their_order():
    assert taken(BlockPool(4)) == [0, 1, 2, 3]


def test_every_block_is_free_or_used():
    pool = BlockPool(5)
    pool.take()
    pool.take()
    assert (pool.free, pool.used) == (3, 2)


def test_what_goes_to_the_front_is_taken_next_and_what_goes_to_the_back_last():
    pool = BlockPool(5)
    for _ in range(4):
        pool.release(pool.take())
    pool.to_front([2, 0])
    pool.to_back([3, 1])
    assert taken(pool) == [2, 0, 4, 3, 1]


def test_a_shared_block_is_nobodys_only_when_all_have_left_it():
    pool = BlockPool(2)
    block = pool.take()
    pool.share(block)
    assert not pool.release(block)
    assert pool.used == 1
    assert pool.release(block)


def test_sharing_a_free_block_takes_it_out_of_the_queue():
    pool = BlockPool(3)
    blocks = taken(pool)
    pool.to_back([block for block in blocks if pool.release(block)])
    pool.share(1)
    assert pool.ref_counts == [0, 1, 0]
    assert taken(pool) == [0, 2]


def test_a_block_cannot_be_given_back_twice():
    pool = BlockPool(1)
    pool.release(pool.take())
    with pytest.raises(AssertionError, match="given back more often"):
        pool.release(0)


def test_blocks_that_were_never_taken_take_no_memory():
    pool = BlockPool(10**12)
    pool.to_back([block for block in (pool.take(), pool.take()) if pool.release(block)])
    assert (pool.take(), pool.free, pool.used) == (2, 10**12 - 1, 1)
