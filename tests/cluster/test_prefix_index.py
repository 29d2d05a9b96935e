"""What a router takes engines to have: the blocks that they were sent last."""

from collections import OrderedDict
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from ksim.cluster.prefix_index import ActiveBlocks, PrefixIndex, PrefixTree
from ksim.flow.request import BlockKeys, Request
from tests.properties import examples


def request(number: int, *chunks: str, tokens: int | None = None) -> Request:
    """A request whose prompt has pieces of 4 tokens with these names, or *tokens* of them."""
    return Request(number, 0.0, prompt=tokens or 4 * len(chunks), output=1, chunks=chunks, chunk_tokens=4)


def index(**options) -> PrefixIndex:
    return PrefixIndex(4, **options)


def test_equal_beginnings_are_found_where_they_were_sent():
    made = index()
    made.add(made.prompt(request(0, *"abc")), 3, 0.0)
    made.add(made.prompt(request(1, *"abd")), 5, 0.0)
    assert made.shared(made.prompt(request(2, *"abdx"))) == {3: 2, 5: 3}
    assert made.shared(made.prompt(request(3, *"xab"))) == {}


def test_llm_d_goes_on_counting_past_a_block_that_an_engine_lacks_while_another_has_it():
    """Blocks leave from the first on, so an engine may have later ones only (matchLongestPrefix of plugin.go)."""
    made = index(capacity=2)
    made.add(made.prompt(request(0, *"abc")), 0, 0.0)  # a has left
    assert made.shared(made.prompt(request(1, *"abc"))) == made.leading(made.prompt(request(1, *"abc"))) == {}
    made.add(made.prompt(request(2, *"a")), 1, 0.0)
    assert made.shared(made.prompt(request(1, *"abc"))) == {1: 1, 0: 2}
    assert made.leading(made.prompt(request(1, *"abc"))) == {1: 1}


def test_a_last_block_that_is_not_full_counts_if_asked():
    whole, part = request(0, *"abc", tokens=10), request(1, *"abc", tokens=9)
    assert index().prompt(whole).blocks == 2
    made = index(partial=True)
    made.add(made.prompt(whole), 0, 0.0)
    assert made.prompt(whole).blocks == 3
    assert made.shared(made.prompt(request(2, *"abc", tokens=10))) == {0: 3}
    assert made.shared(made.prompt(part)) == {0: 2}


def test_only_the_first_blocks_count_if_so_many_are_asked_for():
    made = index(most_blocks=2)
    made.add(made.prompt(request(0, *"abc")), 0, 0.0)
    assert made.prompt(request(0, *"abc")).blocks == 2 and made.shared(made.prompt(request(1, *"abc"))) == {0: 2}


def test_blocks_leave_after_their_time():
    made = index(ttl=120.0)
    made.add(made.prompt(request(0, *"ab")), 0, 0.0)
    made.add(made.prompt(request(1, *"ac")), 0, 100.0)
    made.expire(119.0)
    assert made.leading(made.prompt(request(2, *"ab"))) == {0: 2}
    made.expire(120.0)
    assert made.leading(made.prompt(request(2, *"ab"))) == {0: 1}
    made.expire(220.0)
    assert made.leading(made.prompt(request(2, *"ab"))) == {}


@given(first=st.text("ab", max_size=4), second=st.text("ab", max_size=4), size=st.sampled_from([2, 4, 6, 8, 12]),
       lengths=st.tuples(st.integers(1, 50), st.integers(1, 50)), adapters=st.tuples(*[st.sampled_from(["", "x"])] * 2))
@examples(200)
def test_names_of_any_length_name_blocks_as_they_do_for_caches(first, second, size, lengths, adapters):
    one, two = (Request(number, 0.0, tokens, 1, chunks, size, adapter=adapter) for number, (tokens, chunks, adapter)
                in enumerate(zip(lengths, (first, second), adapters, strict=True)))
    made, keys = index(), BlockKeys(4)
    made.add(made.prompt(one), 0, 0.0)
    known, asked = (keys.of(request, min(request.prompt, request.named) // 4) for request in (one, two))
    assert made.leading(made.prompt(two)).get(0, 0) == sum(key in known for key in asked)


@given(prompts=st.lists(st.tuples(st.text("ab", min_size=1, max_size=9), st.integers(0, 3)), min_size=1, max_size=20))
@examples(100)
def test_served_blocks_count_once_for_each_engine(prompts):
    """Few places of a prompt are looked at; all are here."""
    active, made, served = ActiveBlocks(), index(), []
    for number, (names, engine) in enumerate(prompts):
        prompt = made.prompt(request(number, *names, tokens=4 * len(names) + 4))
        blocks = [{(name[:end + 1], 0) for name, theirs in served for end in range(len(name)) if theirs == number}
                  for number in range(4)]
        depths = [next((depth for depth in range(len(names)) if (names[:depth + 1], 0) not in mine), len(names))
                  for mine in blocks]
        assert active.leading(prompt) == {number: depth for number, depth in enumerate(depths) if depth}
        assert [active.amounts.get(number, 0) for number in range(4)] == [
            len(mine) + sum(theirs == number for _, theirs in served) for number, mine in enumerate(blocks)]
        active.add(prompt, engine)
        served.append((names, engine))
        if number % 3 == 2:
            ended, theirs = served.pop(0)
            active.remove(made.prompt(request(-1, *ended, tokens=4 * len(ended) + 4)), theirs)
    for names, engine in served:
        active.remove(made.prompt(request(-1, *names, tokens=4 * len(names) + 4)), engine)
    assert not any(active.amounts.values()) and not active._holders


def leading(names: str, cache: OrderedDict) -> int:
    return next((depth for depth in range(len(names)) if names[:depth + 1] not in cache), len(names))


def shared(names: str, caches: list[OrderedDict]) -> dict[int, int]:
    last = max(leading(names, {name: None for cache in caches for name in cache}), 0)
    counts = [sum(names[:depth + 1] in cache for depth in range(last)) for cache in caches]
    return {number: count for number, count in enumerate(counts) if count}


@given(prompts=st.lists(st.tuples(st.text("ab", min_size=1, max_size=5), st.integers(0, 2), st.integers(0, 3)),
                        max_size=30), capacity=st.integers(1, 12), few=st.sampled_from([4096, 0]))
@examples(100)
def test_an_engine_has_what_an_lru_cache_of_blocks_would(prompts, capacity, few):
    made, caches = index(), [OrderedDict() for _ in range(3)]
    for number, (names, engine, unnamed) in enumerate(prompts):
        sent = request(number, *names, tokens=4 * (len(names) + unnamed))
        with patch("ksim.cluster.prefix_index._FEW", few):  # how often it is tidied up changes nothing
            made.add(made.prompt(sent), engine, 0.0, capacity)
        cache = caches[engine]
        for block in [*(names[:end + 1] for end in range(len(names))), *((number, place) for place in range(unnamed))]:
            cache[block] = cache.pop(block, None)
        while len(cache) > capacity:
            cache.popitem(last=False)
        for asked in ("aabab", "babba", names):
            prompt = made.prompt(request(-1, *asked))
            depths = {number: leading(asked, cache) for number, cache in enumerate(caches)}
            assert made.leading(prompt) == {number: depth for number, depth in depths.items() if depth}
            assert made.shared(prompt) == shared(asked, caches)


@given(st.lists(st.tuples(st.integers(0, 2), st.text("abc", min_size=1, max_size=4)), max_size=12), st.integers(0, 2))
def test_what_an_engine_had_that_has_gone_is_forgotten_and_nothing_else(sent, gone):
    """As if it had never been sent anything."""
    def played(without):
        made, tree = index(), PrefixTree()
        for turn, (engine, chunks) in enumerate(sent):
            prompt = made.prompt(request(turn, *chunks))
            if engine != without:
                made.add(prompt, engine, 0.0)
                tree.insert(prompt.keys, 4, 0, engine)
        return made, tree

    (made, tree), (never, bare) = played(None), played(gone)
    made.forget(gone)
    tree.forget(gone)
    assert tree.sizes == bare.sizes
    for turn, (_, chunks) in enumerate(sent):
        again = request(turn, *chunks)
        assert made.leading(made.prompt(again)) == never.leading(never.prompt(again))
