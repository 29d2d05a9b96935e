"""SGLang's cache: what is shared to the token, where runs are split, and which leaf is evicted first."""

from collections.abc import Hashable, Sequence

import pytest

from ksim.flow.request import Request
from ksim.kv.cache import BlockTable, PrefixHit
from ksim.kv.cache.sglang import SglangCache
from tests.kv.cache.trees import nodes


def start(kv: SglangCache, content: Sequence[Hashable], tokens: int = 0) -> BlockTable:
    """Hold *tokens* tokens of *content*, by default all that it names, from what is cached of it; compute the rest."""
    table, tokens = BlockTable(content), tokens or len(content)
    kv.attach_prefix(table, kv.find_prefix(table, tokens))
    assert kv.allocate(table, tokens)
    kv.publish_computed(table, tokens)
    return table


def leave(kv: SglangCache, content: Sequence[Hashable]) -> None:
    """Let a request of *content* come and go."""
    kv.free(start(kv, content), len(content))


def hit(kv: SglangCache, content: Sequence[Hashable], tokens: int = 99) -> int:
    """How many tokens of a prompt are found."""
    return kv.find_prefix(BlockTable(content), tokens).tokens


def runs(kv: SglangCache) -> dict[str, int]:
    """The prefixes at which the runs of the tree end, and their locks."""
    return {"".join(run.source.content[: run.end]): run.locks for run in nodes(kv.tree)}


def test_prefixes_are_found_to_the_token():
    kv = SglangCache(20)
    leave(kv, "hello")
    assert [hit(kv, text) for text in ("help", "hello there", "h", "yellow")] == [3, 5, 1, 0]


def test_a_hit_never_covers_the_last_token():
    kv = SglangCache(20)
    leave(kv, "hello")
    assert [hit(kv, "hello", known) for known in (1, 4, 5, 6)] == [0, 3, 4, 5]


def test_a_run_is_split_where_requests_part():
    kv = SglangCache(20)
    start(kv, "hello")
    assert runs(kv) == {"hello": 1}
    start(kv, "help")
    assert runs(kv) == {"hel": 2, "hello": 1, "help": 1}


def test_looking_up_splits_nothing_and_uses_nothing():
    kv = SglangCache(6)
    leave(kv, "abc")
    leave(kv, "xyz")
    assert hit(kv, "ab") == 2
    assert runs(kv) == {"abc": 0, "xyz": 0}
    leave(kv, "m")
    assert runs(kv) == {"xyz": 0, "m": 0}


def test_tokens_are_found_when_they_are_computed_and_not_when_they_are_scheduled():
    kv = SglangCache(20)
    table = BlockTable("hello")
    kv.attach_prefix(table, PrefixHit(0))
    kv.allocate(table, 5)
    kv.publish(table, 5)
    assert hit(kv, "hello") == 0
    kv.publish_computed(table, 3)
    assert hit(kv, "hello") == 3


def test_who_computes_what_is_there_already_uses_that_and_gives_its_own_back():
    kv = SglangCache(20)
    one, other = BlockTable("hello"), BlockTable("helium")
    for table in (one, other):
        kv.attach_prefix(table, PrefixHit(0))
        kv.allocate(table, 5)
    assert kv.pool.used == 10
    kv.publish_computed(one, 5)
    kv.publish_computed(other, 5)
    assert kv.pool.used == 7  # hel, lo, iu
    assert runs(kv) == {"hel": 2, "hello": 1, "heliu": 1}


def test_the_output_of_a_finished_request_is_found_and_that_of_one_that_gave_way_is_not():
    kv = SglangCache(20)
    for content, finished in (("hello", 5), ("world", 0)):
        table = start(kv, content, 2)
        kv.allocate(table, 5)
        kv.free(table, finished)
    assert (hit(kv, "hello there"), hit(kv, "world wide")) == (5, 2)
    assert kv.pool.empty == 13


def test_what_no_name_covers_is_the_requests_alone():
    kv = SglangCache(20)
    table = start(kv, "ab", 6)
    kv.free(table, 6)
    assert (hit(kv, "ab"), hit(kv, "abcdef")) == (2, 2)
    assert kv.find_prefix(table, 9).tokens == 6


def test_the_least_recently_used_leaf_goes_first_and_whole():
    kv = SglangCache(9)
    for content in ("abc", "def", "ghi"):
        leave(kv, content)
    kv.free(start(kv, "abc"))
    leave(kv, "m")
    assert runs(kv) == {"ab": 0, "abc": 0, "ghi": 0, "m": 0}
    assert kv.pool.empty == 2


def test_a_leaf_goes_before_what_it_follows():
    kv = SglangCache(8)
    leave(kv, "abcd")
    leave(kv, "abxy")
    leave(kv, "mno")
    assert runs(kv) == {"ab": 0, "abxy": 0, "mno": 0}
    leave(kv, "pqrst")
    assert runs(kv) == {"mno": 0, "pqrst": 0}


def test_computing_on_is_a_use():
    kv = SglangCache(9)
    table = start(kv, "abc", 2)
    leave(kv, "xyz")
    kv.allocate(table, 3)
    kv.publish_computed(table, 3)
    kv.free(table)
    start(kv, "12345")
    assert runs(kv) == {"ab": 0, "abc": 0, "12345": 1}


def test_what_is_in_use_is_not_lost_however_old():
    kv = SglangCache(6)
    start(kv, "abc")
    leave(kv, "xyz")
    assert kv.pool.free == 3
    assert not kv.allocate(start(kv, "m"), 4)
    assert runs(kv) == {"abc": 1, "m": 1}


def test_hits_that_nobody_uses_take_room_too():
    kv = SglangCache(6)
    leave(kv, "abcd")
    prefix = kv.find_prefix(BlockTable("abcd"), 4)
    assert (prefix.tokens, kv.pool.free) == (3, 6)
    assert kv.can_allocate(prefix, 6)
    assert not kv.can_allocate(prefix, 7)
    assert not kv.can_allocate(prefix, 6, spare=1)


def test_hits_that_others_use_take_no_room():
    kv = SglangCache(6)
    start(kv, "abcd")
    prefix = kv.find_prefix(BlockTable("abcd"), 4)
    assert kv.can_allocate(prefix, 5)
    assert not kv.can_allocate(prefix, 6)
    assert not kv.can_allocate(PrefixHit(0), 5)


def test_growing_is_all_or_nothing():
    kv = SglangCache(4)
    table = start(kv, "abc")
    assert not kv.allocate(table, 5)
    assert kv.pool.free == 1
    assert kv.allocate(table, 4)


def test_without_prefix_caching_nothing_is_kept():
    kv = SglangCache(6, prefix_caching=False)
    leave(kv, "abc")
    assert (hit(kv, "abcd"), kv.pool.empty) == (0, 6)


def test_freeing_twice_gives_nothing_back_twice():
    kv = SglangCache(6)
    table = start(kv, "abc")
    kv.free(table)
    kv.free(table)
    assert kv.pool.free == 6


def test_a_table_that_is_in_use_takes_no_hit():
    kv = SglangCache(6)
    table = start(kv, "abc")
    with pytest.raises(AssertionError, match="admitted again"):
        kv.attach_prefix(table, PrefixHit(0))


def test_a_name_stands_for_a_chunk_of_tokens_and_the_last_for_those_that_are_left():
    kv = SglangCache(100)
    table = kv.block_table(Request(0, 0.0, 20, 9, (7, 8, 9), 8))
    assert (table.tokens_per_name, table.named_tokens) == (8, 20)
    kv.attach_prefix(table, PrefixHit(0))
    kv.allocate(table, 20)
    kv.publish_computed(table, 20)
    hits = [kv.find_prefix(kv.block_table(Request(1, 0.0, 40, 9, chunks, 8)), 40).tokens
            for chunks in ((7, 8, 9, 1, 2), (7, 8, 3, 4, 5), (7,), (8, 7, 9, 1, 2))]
    assert hits == [20, 16, 8, 0]


def test_chunks_of_another_size_are_others_whatever_their_names():
    kv = SglangCache(100)
    leave(kv, (1, 2, 3))
    assert kv.find_prefix(kv.block_table(Request(1, 0.0, 40, 9, (1, 2, 3), 8)), 40).tokens == 0


def test_a_step_that_decodes_costs_a_slot_and_no_more():
    kv = SglangCache(100)
    table = start(kv, "abc")
    before = runs(kv)
    assert kv.steps_until_change(table, 3, async_scheduling=False) == 0
    for tokens in range(4, 50):
        assert kv.allocate(table, tokens)
    assert (runs(kv), kv.pool.used) == (before, 49)
