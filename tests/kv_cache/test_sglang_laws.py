"""Whatever is done to it, SGLang's cache does as tuples of tokens would, and loses no slot."""

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from ksim.kv_cache.cache import Holding
from ksim.kv_cache.sglang import SglangCache
from tests.kv_cache.naive_tokens import NaiveRequest, NaiveTokens, Tokens
from tests.properties import examples

LONGEST = 60

contents = st.lists(st.sampled_from("aab"), max_size=8)
parts = st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.0])
units = st.sampled_from([1, 1, 3])


def holding_of(content: Sequence[str], unit: int, cut: int) -> Holding:
    """A holding of *content*, whose last name stands for *cut* tokens fewer."""
    return Holding(content, unit, max(0, len(content) * unit - min(cut, unit - 1)))


def text(holding: Holding, number: int) -> Tokens:
    return tuple((holding.unit, holding.content[place // holding.unit]) if place < holding.named else (number, "own")
                 for place in range(LONGEST))


class Comparison(RuleBasedStateMachine):
    """One cache and its naive model, and the requests that hold tokens in both."""

    waiting = Bundle("waiting")
    running = Bundle("running")

    @initialize(capacity=st.integers(5, 40), prefix_caching=st.sampled_from([True, True, True, False]))
    def build(self, capacity, prefix_caching):
        self.real = SglangCache(capacity, prefix_caching)
        self.naive = NaiveTokens(capacity, prefix_caching)
        self.texts: dict[Holding, Tokens] = {}

    @rule(target=waiting, content=contents, unit=units, cut=st.integers(0, 2))
    def arrive(self, content, unit, cut):
        holding = holding_of(content, unit, cut)
        self.texts[holding] = text(holding, len(self.texts))
        return holding, NaiveRequest(self.texts[holding])

    @rule(target=running, pair=consumes(waiting), known=st.integers(1, 30), chunk=st.sampled_from([1, 3, 30]),
          spare=st.sampled_from([0, 0, 2]))
    def admit(self, pair, known, chunk, spare):
        """What it finds is the same, and so is whether there is room for more."""
        holding, request = pair
        hit = self.real.lookup(holding, known)
        assert hit.tokens == self.naive.lookup(request, known) < known
        tokens = min(known, hit.tokens + chunk)
        fits = self.real.fits(hit, tokens, spare)
        assert fits == self.naive.fits(request, hit.tokens, tokens, spare)
        if not fits:
            return multiple()
        self.real.open(holding, hit)
        self.naive.open(request, hit.tokens)
        assert self.real.grow(holding, tokens)
        assert self.naive.grow(request, tokens)
        return pair

    @rule(pair=running, tokens=st.integers(1, LONGEST))
    def grow(self, pair, tokens):
        holding, request = pair
        assert self.real.grow(holding, tokens) == self.naive.grow(request, tokens)

    @rule(pair=running, part=parts)
    def compute(self, pair, part):
        holding, request = pair
        tokens = int(request.held * part)
        self.real.computed(holding, tokens)
        self.naive.computed(request, tokens)

    @rule(target=waiting, pair=consumes(running), part=parts)
    def close(self, pair, part):
        """It may come back, and find what it left."""
        holding, request = pair
        tokens = int(request.held * part)
        self.real.close(holding, tokens)
        self.naive.close(request, tokens)
        return pair

    @rule(content=contents, unit=units, cut=st.integers(0, 2), known=st.integers(1, 30))
    def look_up(self, content, unit, cut, known):
        holding = holding_of(content, unit, cut)
        assert self.real.lookup(holding, known).tokens == self.naive.lookup(NaiveRequest(text(holding, -1)), known)

    @invariant()
    def the_same_runs_with_the_same_locks(self):
        """So what was evicted is the same, too, and nothing of it was locked."""
        assert {self.texts[run.source][: run.end]: run.locks for run in self.real.tree} == {
            end: self.naive.locks(end) for end in self.naive.ends}

    @invariant()
    def no_slot_is_lost_or_counted_twice(self):
        pool = self.real.pool
        assert (pool.empty, pool.used) == (self.naive.empty, self.naive.used)
        runs = sum(run.tokens for run in self.real.tree)
        assert pool.empty + runs + sum(request.held - request.entered for request in self.naive.live) == pool.capacity
        assert pool.evictable == sum(run.tokens for run in self.real.tree if run.locks == 0)

    @invariant()
    def every_run_follows_its_parent(self):
        for run in self.real.tree:
            assert run.parent is not None and run.start == run.parent.end < run.end
            assert run.locks <= run.parent.locks or run.parent is self.real.tree.root

    def teardown(self):
        """What nobody uses can all be had."""
        if hasattr(self, "real"):
            rest = Holding()
            self.real.open(rest, self.real.lookup(rest, 1))
            assert self.real.grow(rest, self.real.pool.free)
            assert all(run.locks for run in self.real.tree)


TestSglangCache = Comparison.TestCase
TestSglangCache.settings = examples(200, stateful_step_count=50)
