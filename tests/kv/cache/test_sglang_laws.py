"""Whatever is done to it, SGLang's cache does as tuples of tokens would, and loses no slot."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from ksim.kv.cache import BlockTable
from ksim.kv.cache.sglang import SglangCache
from tests.kv.cache.naive_tokens import NaiveRequest, NaiveTokens, Tokens
from tests.kv.cache.tables import LONGEST, contents, table_of, text, units
from tests.kv.cache.trees import nodes
from tests.properties import examples

parts = st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.0])


class Comparison(RuleBasedStateMachine):
    """One cache and its naive model, and the requests that hold tokens in both."""

    waiting = Bundle("waiting")
    running = Bundle("running")

    @initialize(capacity=st.integers(5, 40), prefix_caching=st.sampled_from([True, True, True, False]))
    def build(self, capacity, prefix_caching):
        self.real = SglangCache(capacity, prefix_caching)
        self.naive = NaiveTokens(capacity, prefix_caching)
        self.texts: dict[BlockTable, Tokens] = {}

    @rule(target=waiting, content=contents, unit=units, cut=st.integers(0, 2))
    def arrive(self, content, unit, cut):
        table = table_of(content, unit, cut)
        self.texts[table] = text(table, len(self.texts))
        return table, NaiveRequest(self.texts[table])

    @rule(target=running, pair=consumes(waiting), known=st.integers(1, 30), chunk=st.sampled_from([1, 3, 30]),
          spare=st.sampled_from([0, 0, 2]))
    def admit(self, pair, known, chunk, spare):
        """What it finds is the same, and so is whether there is room for more."""
        table, request = pair
        hit = self.real.find_prefix(table, known)
        assert hit.tokens == self.naive.find_prefix(request, known) < known
        tokens = min(known, hit.tokens + chunk)
        fits = self.real.can_allocate(hit, tokens, spare)
        assert fits == self.naive.can_allocate(request, hit.tokens, tokens, spare)
        if not fits:
            return multiple()
        self.real.attach_prefix(table, hit)
        self.naive.attach_prefix(request, hit.tokens)
        assert self.real.allocate(table, tokens)
        assert self.naive.allocate(request, tokens)
        return pair

    @rule(pair=running, tokens=st.integers(1, LONGEST))
    def allocate(self, pair, tokens):
        table, request = pair
        assert self.real.allocate(table, tokens) == self.naive.allocate(request, tokens)

    @rule(pair=running, part=parts)
    def compute(self, pair, part):
        table, request = pair
        tokens = int(request.num_slots * part)
        self.real.publish_computed(table, tokens)
        self.naive.publish_computed(request, tokens)

    @rule(target=waiting, pair=consumes(running), part=parts)
    def free(self, pair, part):
        """It may come back, and find what it left."""
        table, request = pair
        tokens = int(request.num_slots * part)
        self.real.free(table, tokens)
        self.naive.free(request, tokens)
        return pair

    @rule(content=contents, unit=units, cut=st.integers(0, 2), known=st.integers(1, 30))
    def find_prefix(self, content, unit, cut, known):
        table = table_of(content, unit, cut)
        request = NaiveRequest(text(table, -1))
        assert self.real.find_prefix(table, known).tokens == self.naive.find_prefix(request, known)

    @invariant()
    def the_same_runs_with_the_same_locks(self):
        """So what was evicted is the same, too, and nothing of it was locked."""
        assert {self.texts[run.source][: run.end]: run.locks for run in nodes(self.real.tree)} == {
            end: self.naive.locks(end) for end in self.naive.ends}

    @invariant()
    def no_slot_is_lost_or_counted_twice(self):
        pool = self.real.pool
        assert (pool.empty, pool.used) == (self.naive.empty, self.naive.used)
        runs = sum(run.tokens for run in nodes(self.real.tree))
        unpublished = sum(request.num_slots - request.published for request in self.naive.live)
        assert pool.empty + runs + unpublished == pool.capacity
        assert pool.evictable == sum(run.tokens for run in nodes(self.real.tree) if run.locks == 0)

    @invariant()
    def every_run_follows_its_parent(self):
        for run in nodes(self.real.tree):
            assert run.parent is not None and run.start == run.parent.end < run.end
            assert run.locks <= run.parent.locks or run.parent is self.real.tree.root

    def teardown(self):
        """What nobody uses can all be had."""
        if hasattr(self, "real"):
            rest = BlockTable()
            self.real.attach_prefix(rest, self.real.find_prefix(rest, 1))
            assert self.real.allocate(rest, self.real.pool.free)
            assert all(run.locks for run in nodes(self.real.tree))


TestSglangCache = Comparison.TestCase
TestSglangCache.settings = examples(200, stateful_step_count=50)
