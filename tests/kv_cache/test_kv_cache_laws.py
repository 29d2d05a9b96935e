"""Whatever is done to it, the KV cache does as lists and a dictionary would, and loses no block."""

from collections import Counter
from collections.abc import Hashable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from ksim.kv_cache.cache import Holding
from ksim.kv_cache.evictions.vllm import vllm
from ksim.kv_cache.kv_cache import KVCache
from ksim.kv_cache.radix import Node
from tests.kv_cache.naive import NaiveCache, NaiveRequest, Prefix
from tests.properties import examples

Pair = tuple[Holding, NaiveRequest]

contents = st.lists(st.sampled_from("ab"), max_size=5)


class Comparison(RuleBasedStateMachine):
    """One cache and its naive model, and the requests that hold blocks in both.

    vLLM's order is the cache's own, and an eviction among others.
    """

    waiting = Bundle("waiting")
    running = Bundle("running")

    @initialize(capacity=st.integers(1, 14), block_tokens=st.integers(1, 4),
                prefix_caching=st.sampled_from([True, True, True, False]), eviction=st.sampled_from([None, vllm]))
    def build(self, capacity, block_tokens, prefix_caching, eviction):
        self.real = KVCache(capacity, block_tokens, prefix_caching, eviction)
        self.naive = NaiveCache(capacity, block_tokens, prefix_caching)
        self.live: list[Pair] = []
        self.numbers: dict[Holding, int] = {}

    @rule(target=waiting, content=contents)
    def arrive(self, content):
        holding, number = Holding(content), len(self.numbers)
        self.numbers[holding] = number
        return holding, NaiveRequest(content, number)

    @rule(target=running, pair=consumes(waiting), known=st.integers(1, 30), chunk=st.integers(1, 30),
          spare=st.integers(0, 2))
    def admit(self, pair, known, chunk, spare):
        """What it finds is the same, and so is whether there is room for more."""
        holding, request = pair
        hit, hits = self.real.lookup(holding, known), self.naive.lookup(request, known)
        assert [node.blocks[0] for node in hit.nodes] == hits
        assert hit.tokens == len(hits) * self.naive.block_tokens < known
        tokens = min(known, len(hits) * self.naive.block_tokens + chunk)
        fits = self.real.fits(hit, tokens, spare)
        assert fits == self.naive.fits(hits, tokens, spare)
        if not fits:
            return multiple()
        self.real.open(holding, hit)
        self.naive.open(request, hits)
        assert self.real.grow(holding, tokens)
        assert self.naive.grow(request, tokens)
        self.live.append(pair)
        return pair

    @rule(pair=running, tokens=st.integers(1, 40))
    def grow(self, pair, tokens):
        holding, request = pair
        assert self.real.grow(holding, tokens) == self.naive.grow(request, tokens)

    @rule(pair=running, tokens=st.integers(1, 40))
    def enter(self, pair, tokens):
        holding, request = pair
        tokens = min(tokens, len(holding.blocks) * self.real.block_tokens)
        self.real.enter(holding, tokens)
        self.naive.enter(request, tokens)

    @rule(target=waiting, pair=consumes(running))
    def close(self, pair):
        """It may come back, and find what it left."""
        holding, request = pair
        self.real.close(holding)
        self.naive.close(request)
        self.live.remove(pair)
        return pair

    @rule(content=contents, known=st.integers(1, 30))
    def look_up(self, content, known):
        found = [node.blocks[0] for node in self.real.lookup(Holding(content), known).nodes]
        assert found == self.naive.lookup(NaiveRequest(content, -1), known)

    @invariant()
    def the_same_blocks_in_the_same_order(self):
        assert [holding.blocks for holding, _ in self.live] == [request.blocks for _, request in self.live]
        assert self.real.pool.users == self.naive.users
        assert self.real.pool.free == len(self.naive.free)

    @invariant()
    def every_user_is_counted_and_no_block_is_lost(self):
        used = Counter(block for holding, _ in self.live for block in holding.blocks)
        assert [used[block] for block in range(self.real.capacity)] == self.real.pool.users
        assert len(used) + self.real.pool.free == self.real.capacity

    @invariant()
    def who_share_a_block_have_the_same_tokens_in_it(self):
        owners: dict[int, Any] = {}
        for holding, request in self.live:
            assert len(set(holding.blocks)) == len(holding.blocks)
            for place, block in enumerate(holding.blocks):
                assert owners.setdefault(block, request.prefix(place + 1)) == request.prefix(place + 1)

    @invariant()
    def what_can_be_found_is_the_same(self):
        assert {self.prefix(node): node.blocks for node in self.real.tree} == {
            names: blocks for names, blocks in self.naive.found.items() if blocks}

    def prefix(self, node: Node) -> Prefix:
        """The path to *node*; below a request, which stands for its first block of its own, the tree but counts."""
        names: list[Hashable] = []
        while node.parent is not None:
            names.insert(0, node.name)
            node = node.parent
        own = next((name for name in names if isinstance(name, Holding)), None)
        first = len(names) if own is None else names.index(own)
        return (*names[:first], *((self.numbers[own], place) for place in range(first, len(names))))

    def teardown(self):
        """At the end, all that is free is taken: in the same order."""
        if hasattr(self, "real"):
            assert [self.real.pool.take() for _ in range(self.real.pool.free)] == self.naive.free


TestKVCache = Comparison.TestCase
TestKVCache.settings = examples(100, stateful_step_count=40)
