"""Whatever is done to it, SGLang's radix cache does as tuples of pages would, and loses no page."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from ksim.kv.cache import BlockTable
from ksim.kv.cache.radix import RadixCache
from tests.kv.cache.naive_pages import NaivePages, NaiveRequest, Pages
from tests.kv.cache.tables import LONGEST, contents, table_of, text, units
from tests.kv.cache.trees import nodes
from tests.properties import examples

parts = st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.0])


class Comparison(RuleBasedStateMachine):
    """One cache and its naive model, and the requests that hold pages in both."""

    waiting = Bundle("waiting")
    running = Bundle("running")

    @initialize(capacity=st.integers(4, 30), page=st.integers(1, 3),
                prefix_caching=st.sampled_from([True, True, True, False]))
    def build(self, capacity, page, prefix_caching):
        self.real = RadixCache(capacity, page, prefix_caching)
        self.naive = NaivePages(capacity, page, prefix_caching)
        self.texts: dict[BlockTable, Pages] = {}

    @rule(target=waiting, content=contents, unit=units, cut=st.integers(0, 2))
    def arrive(self, content, unit, cut):
        table = table_of(content, unit, cut)
        self.texts[table] = self.pages(table, len(self.texts))
        return table, NaiveRequest(self.texts[table])

    def pages(self, table, number):
        tokens = text(table, number)
        return tuple(tokens[at: at + self.real.block_tokens] for at in range(0, LONGEST, self.real.block_tokens))

    @rule(target=running, pair=consumes(waiting), known=st.integers(1, 30), chunk=st.sampled_from([1, 3, 30]))
    def admit(self, pair, known, chunk):
        """What it finds is the same, and so is what must go for the rest."""
        table, request = pair
        tokens, node = self.look_up(pair, known)
        more = min(known, tokens + chunk) - tokens
        if more > self.real.free_tokens() + self.real.evictable_tokens() - (
                self.real.locked(node) + 1) * self.real.block_tokens:
            return multiple()
        self.real.lock(table, tokens, node)
        self.naive.lock(request, tokens // self.real.block_tokens)
        self.grow(pair, tokens + more)
        return pair

    @rule(pair=waiting, known=st.integers(1, 30))
    def an_order_looks_up(self, pair, known):
        self.look_up(pair, known)

    def look_up(self, pair, known):
        table, request = pair
        free = self.real.find_prefix(table, known).tokens
        tokens, node = self.real.look_up(table, known - 1)
        assert tokens == free == self.naive.look_up(request.text, known - 1) * self.real.block_tokens < known
        return tokens, node

    @rule(pair=running, tokens=st.integers(1, LONGEST))
    def grow(self, pair, tokens):
        """Room is made by the page; who lacks some gets none."""
        table, request = pair
        more = max(self.real.blocks(tokens) - self.real.blocks(table.num_slots), 0) * self.real.block_tokens
        fits = self.real.make_room(more)
        assert fits == self.naive.make_room(more)
        if fits and tokens > table.num_slots:
            self.real.grow(table, tokens)
            request.slots = tokens

    @rule(pair=running, part=parts, prompt=st.integers(0, 20))
    def compute(self, pair, part, prompt):
        table, request = pair
        tokens = max(int(request.slots * part), table.published)
        self.real.publish_computed(table, tokens, prompt)
        self.naive.publish_computed(request, tokens, prompt)

    @rule(target=waiting, pair=consumes(running), part=parts, prompt=st.integers(0, 20))
    def free(self, pair, part, prompt):
        """It may come back, and find what it left."""
        table, request = pair
        tokens = int(request.slots * part)
        tokens = tokens and max(tokens, table.published)
        self.real.free(table, tokens, prompt)
        self.naive.free(request, tokens, prompt)
        return pair

    @invariant()
    def the_same_nodes_with_the_same_locks(self):
        """So what was evicted is the same, too, and nothing of it was locked."""
        page = self.real.block_tokens
        assert {self.texts[node.source][: node.end // page]: node.locks for node in nodes(self.real.tree)} == {
            end: self.naive.locks(end) for end in self.naive.ends}

    @invariant()
    def no_page_is_lost_or_counted_twice(self):
        real = self.real
        assert (real.pool.empty, real.pool.evictable) == (self.naive.empty, self.naive.evictable)
        cached = sum(node.tokens for node in nodes(real.tree))
        assert (real.cached_tokens(), real.free_tokens()) == (cached, real.pool.empty * real.block_tokens)

    @invariant()
    def every_node_has_whole_pages_and_follows_its_parent(self):
        for node in nodes(self.real.tree):
            assert node.start % self.real.block_tokens == node.end % self.real.block_tokens == 0
            assert node.start == node.parent.end < node.end
            assert node.locks <= node.parent.locks or node.parent is self.real.tree.root
            assert node.parent.children[self.real.tree.key(node.source, node.start)] is node

    def teardown(self):
        """What nobody uses can all be had."""
        if hasattr(self, "real"):
            assert self.real.make_room(self.real.pool.free * self.real.block_tokens)
            assert all(node.locks for node in nodes(self.real.tree))


TestRadixCache = Comparison.TestCase
TestRadixCache.settings = examples(200, stateful_step_count=50)
