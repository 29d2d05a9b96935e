"""SGLang's cache-aware router and its tree, on states worked out by hand (sgl-model-gateway, policies/*.rs)."""

from hypothesis import given
from hypothesis import strategies as st

from ksim.cluster.prefix_index import PrefixTree
from ksim.cluster.routers.sglang_cache_aware import SglangCacheAware
from ksim.flow.request import Request
from tests.cluster.views import View
from tests.properties import examples


def views(*outstanding: int) -> list[View]:
    return [View(number, requests, 0) for number, requests in enumerate(outstanding)]


def request(*names: str, prompt: int = 0) -> Request:
    """A request whose prompt has these names for 16 tokens each, and may go on without names."""
    return Request(0, 0.0, prompt or 16 * len(names), 1, chunks=names)


def test_even_loads_send_it_where_its_beginning_went():
    router = SglangCacheAware()
    assert router.choose(request("a", "b"), views(1, 0), 0.0).number == 1  # nothing matches: least load
    assert router.choose(request("a", "b", "c"), views(0, 5), 0.0).number == 1  # 2/3 of it match
    assert router.choose(request("x", "y"), views(0, 5), 0.0).number == 0


def test_a_match_has_to_be_longer_than_the_threshold():
    """match_rate > cache_threshold: 3 of 10 blocks are not more than 0.3."""
    router = SglangCacheAware()
    router.choose(request(*"abc"), views(1, 0), 0.0)
    assert router.choose(request(*"abcdefghij"), views(0, 1), 0.0).number == 0
    router = SglangCacheAware()
    router.choose(request(*"abcd"), views(1, 0), 0.0)
    assert router.choose(request(*"abcdefghij"), views(0, 1), 0.0).number == 1


def test_uneven_loads_take_the_least_and_tell_the_tree():
    """(max - min) > 64 and max > 1.5 min."""
    router = SglangCacheAware()
    router.choose(request("a"), views(1, 0), 0.0)
    assert router.choose(request("a"), views(0, 64), 0.0).number == 1  # 64 is not more than 64
    assert router.choose(request("a"), views(0, 65), 0.0).number == 0
    assert router.choose(request("a"), views(200, 265), 0.0).number == 1  # 265 is not more than 300; 1 made the node


def test_options_of_older_releases():
    router = SglangCacheAware(0.5, 32, 1.0001)
    router.choose(request("a"), views(1, 0), 0.0)
    assert router.choose(request("a"), views(200, 233), 0.0).number == 0


def test_a_match_within_a_node_ends_at_its_maker():
    tree = PrefixTree()
    tree.insert([1, 2, 3], 16, 0, 7)
    assert tree.match([1, 2, 9]) == (2, 7)
    tree.insert([1, 2, 9], 16, 0, 8)  # splits: [1, 2] was made by 7, and both have it
    assert tree.match([1, 2]) == (2, 7)
    assert tree.match([1, 2, 9]) == (3, 8)
    assert tree.sizes == {7: 48, 8: 48}


def test_what_was_longest_unused_leaves_first():
    tree = PrefixTree()
    for keys in ([1, 2], [1, 3], [4]):
        tree.insert(keys, 16, 0, 0)
    tree.evict(48)  # of 64 tokens: [2] goes
    assert tree.sizes == {0: 48}
    assert tree.match([1, 2])[0] == 1
    assert tree.match([1, 3])[0] == 2
    tree.evict(0)
    assert tree.sizes == {0: 0}
    assert tree.match([1, 3]) == (0, 0)


def test_tokens_without_names_take_room_and_match_nobody():
    router = SglangCacheAware(max_tree_size=100, eviction_interval_secs=60)
    router.choose(request("a", prompt=216), views(0), 0.0)
    assert router.choose(request("a", prompt=20), views(0, 1), 59.0).number == 0
    router.choose(request("b"), views(0), 60.0)  # evicts first
    assert router._tree.sizes[0] <= 100 + 16


@given(texts=st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 9), st.integers(0, 2)),
                      max_size=12), most=st.integers(0, 200))
@examples(60)
def test_sizes_count_the_tree(texts, most):
    """Whatever is inserted and evicted, an engine's size is the tokens of its nodes, and it is within the limit."""
    tree = PrefixTree()
    for keys, tail, engine in texts:
        chained = [sum(3**place * (key + 1) for place, key in enumerate(keys[:end + 1])) for end in range(len(keys))]
        tree.insert(chained, 16, tail, engine)
        assert tree.match(chained)[0] == len(chained)
    tree.evict(most)
    for engine, size in tree.sizes.items():
        assert size == sum(node.tokens for node in tree._nodes() if engine in node.used)
        assert size <= most
