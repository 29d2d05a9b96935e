"""SGLang's cache of layers with sliding windows: what is found, what is freed, and what is evicted first."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.request import Request
from ksim.kv.cache.window_radix import WindowNode, WindowRadixCache, WindowTable
from tests.kv.cache.trees import nodes
from tests.properties import examples


def cache(capacity: int = 40, window_capacity: int = 40, window: int = 4, page: int = 1) -> WindowRadixCache:
    return WindowRadixCache(capacity, page, window=window, window_capacity=window_capacity)


def start(kv: WindowRadixCache, content: Sequence[Hashable]) -> WindowTable:
    """Hold *content*, from what is cached of it; compute the rest."""
    table = kv.block_table(Request(0, 0.0, max(len(content), 1), 1, content, 1))
    tokens, node = kv.look_up(table, len(content) - 1)
    kv.lock(table, tokens, node)
    assert kv.make_room(len(content) - tokens)
    kv.grow(table, len(content))
    kv.publish_computed(table, len(content))
    return table


def leave(kv: WindowRadixCache, content: Sequence[Hashable]) -> None:
    """Let a request of *content* come and go."""
    kv.free(start(kv, content), len(content))


def hit(kv: WindowRadixCache, content: Sequence[Hashable]) -> int:
    """How many tokens of a prompt are found."""
    return kv.find_prefix(WindowTable(content), 99).tokens


def test_a_path_keeps_little_more_than_a_window_at_its_end():
    kv = cache()
    leave(kv, "abcdefghijkl")
    assert (kv.cached_tokens(), kv.cached_window_tokens()) == (12, 5)
    assert (kv.free_tokens(), kv.free_window_tokens()) == (28, 35)


def test_a_prefix_is_found_only_with_a_window_before_its_end():
    kv = cache()
    leave(kv, "abcdefghijkl")
    assert [hit(kv, text) for text in ("abcdefghijkl", "abcdefghijk", "abcdefghxx", "abxx")] == [12, 11, 0, 0]


def test_a_short_prompt_is_found_from_its_beginning():
    kv = cache()
    leave(kv, "abc")
    assert [hit(kv, text) for text in ("abcx", "abx")] == [3, 2]


def test_where_prompts_part_a_window_is_kept_for_the_next():
    kv = cache()
    leave(kv, "abcdefghijkl")
    leave(kv, "abcdefghxxxx")
    assert hit(kv, "abcdefghyyyy") == 8


def test_a_window_is_evicted_before_the_rest_of_its_tokens():
    kv = cache(window_capacity=12)
    leave(kv, "abcdefgh")
    leave(kv, "abcdefghijkl")
    start(kv, "uvwxyz")
    assert (kv.cached_tokens(), kv.cached_window_tokens()) == (12 + 6, 4 + 5)
    assert [hit(kv, text) for text in ("abcdefghijkl", "abcdefgh")] == [12, 0]


def test_a_window_slides_when_enough_tokens_have_passed():
    kv = cache()
    table = start(kv, "abcdefghijkl")
    kv.grow(table, 20)
    kv.slide(table, 15, interval=8)
    assert table.slid == 7
    kv.slide(table, 19, interval=8)
    assert table.slid == 15
    assert kv.free_window_tokens() == 40 - 5 - 8 + 3


CONTENTS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=10).map("".join)
ACTIONS = st.lists(st.tuples(st.sampled_from(["start", "end", "drop", "decode"]), CONTENTS,
                             st.integers(0, 9)), max_size=40)


@examples(200)
@given(ACTIONS, st.integers(1, 9), st.sampled_from([1, 2, 4]), st.integers(12, 24))
def test_no_slot_is_lost_in_either_pool(actions, window, page, capacity):
    kv, held = cache(24, capacity, window, page), list[WindowTable]()
    for action, content, which in actions:
        table = held[which % len(held)] if held else None
        if action == "start" and kv.make_room(len(content) + page):
            held.append(start(kv, content))
        elif action == "decode" and table is not None and kv.make_room(page):
            kv.slide(table, table.num_slots - 1)
            kv.grow(table, table.num_slots + 1)
        elif action in ("end", "drop") and table is not None:
            held.remove(table)
            kv.free(table, table.num_slots if action == "end" else 0)
        check(kv, held)
    for table in held:
        kv.free(table)
    assert kv.pool.free == kv.capacity
    assert kv.window_pool.free == kv.window_capacity


def check(kv: WindowRadixCache, held: list[WindowTable]) -> None:
    """Every slot is empty, in the tree, or a request's own; and locks are those of the requests."""
    page, tree = kv.block_tokens, [node for node in nodes(kv.tree) if isinstance(node, WindowNode)]
    own = [kv.blocks(table.num_slots) - table.published // page for table in held]
    slid = [max(0, table.slid - table.published) // page for table in held]
    live = [node for node in tree if node.live]
    assert kv.pool.empty + sum(own) + sum(node.tokens for node in tree) // page == kv.capacity
    assert kv.window_pool.empty + sum(own) - sum(slid) + sum(node.tokens for node in live) // page == kv.window_capacity
    assert kv.window_pool.evictable * page == sum(node.tokens for node in live if not node.window_locks)
    assert all(node.window_locks <= node.locks for node in tree)
    order = [kv._order.ends]
    while (older := order[-1].older) is not kv._order.ends:
        order.append(older)
    assert sorted(order[1:], key=id) == sorted(live, key=id)
    assert all(after.newer is before for before, after in pairwise(order))
