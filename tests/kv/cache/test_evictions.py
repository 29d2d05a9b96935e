"""What each eviction loses first, and what becomes of one that is broken."""

import math

import pytest

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.kv.cache import BlockTable, PrefixHit
from ksim.kv.cache.block_cache import BlockCache, TrackedNode
from ksim.kv.cache.evictions import EvictionQueue
from ksim.kv.cache.sglang import SglangCache


def cache_of(name, eviction, room=9):
    """A cache in which each token has a block of its own."""
    return SglangCache(room, True, eviction) if name == "sglang" else BlockCache(room, 1, True, eviction)


def leave(kv, content):
    """Let a request of *content* come and go."""
    table = BlockTable(content)
    kv.attach_prefix(table, kv.find_prefix(table, len(content) + 1))
    assert kv.allocate(table, len(content))
    kv.publish(table, len(content))
    kv.free(table, len(content))


def cached(kv, *contents):
    return [kv.find_prefix(BlockTable(content), 99).tokens for content in contents]


@pytest.mark.parametrize(("name", "eviction", "left"), [
    # abc came first and was used again, def was used least recently; what is new takes two tokens.
    ("vllm", "vllm", [3, 1, 3]), ("vllm", "lru", [3, 1, 3]), ("vllm", "lfu", [3, 1, 3]), ("vllm", "fifo", [1, 3, 3]),
    ("vllm", "mru", [1, 3, 3]), ("vllm", "deepest_first", [3, 2, 2]),
    ("sglang", "vllm", [3, 0, 3]), ("sglang", "lru", [3, 0, 3]), ("sglang", "lfu", [3, 0, 3]),
    ("sglang", "fifo", [0, 3, 3]), ("sglang", "mru", [0, 3, 3]), ("sglang", "deepest_first", [3, 0, 3])])
def test_which_prefixes_an_eviction_keeps(name, eviction, left):
    """vLLM's cache loses blocks, the last of a request first; SGLang's a run of tokens."""
    kv = cache_of(name, catalog.find("kv.cache.evictions", eviction))
    for content in ("abc", "def", "ghi", "abc"):
        leave(kv, content)
    leave(kv, "xy")
    assert cached(kv, "abc", "def", "ghi") == left


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_an_eviction_sees_a_nodes_past(name):
    seen = []
    kv = cache_of(name, lambda node: seen.append((node.depth, node.created, node.last_use, node.hits)) or 0)
    leave(kv, "a")
    (first,) = seen
    leave(kv, "a")
    (depth, created, last_use, hits) = seen[-1]
    assert (depth, hits, first[3]) == (1, 1, 0)
    assert created == first[1] <= first[2] < last_use


def test_a_block_that_was_lost_begins_anew_though_others_followed_it():
    kv = cache_of("vllm", lambda node: node.depth, room=3)
    leave(kv, "abc")
    leave(kv, "x")
    assert cached(kv, "abc") == [0]
    table = BlockTable("abc")
    kv.attach_prefix(table, PrefixHit(0))
    kv.allocate(table, 1)
    kv.publish(table, 1)
    (a,) = (node for node in kv.tree if node.name == "a")
    assert (a.hits, a.created) == (0, a.last_use)


def test_blocks_without_reusable_content_go_before_all_others():
    kv = BlockCache(4, 2, True, lambda node: -node.last_use)
    table = BlockTable("ab")
    kv.attach_prefix(table, PrefixHit(0))
    kv.allocate(table, 5)
    kv.publish(table, 5)
    kv.free(table)
    assert [kv.pool.take() for _ in range(4)] == [2, 3, 1, 0]


@pytest.mark.parametrize(("eviction", "message"), [
    (lambda node: 1 / 0, "eviction <lambda>: ZeroDivisionError"),
    (lambda node: node.age, "eviction <lambda>: AttributeError: .*age"),
    (lambda node: "x" if node.depth > 1 else 3, "eviction <lambda>: TypeError: .*not supported"),
    (lambda node: math.nan, "eviction <lambda>: a key is not a number")])
def test_a_broken_key_function_is_named(eviction, message):
    order = EvictionQueue(eviction)
    with pytest.raises(ConfigError, match=message):
        for depth in range(3):
            node = TrackedNode("a", None)
            node.depth = depth
            order.add(depth, node)
