"""Whatever is done to it, vLLM's cache in runs answers as the one that goes block by block does."""

from collections.abc import Iterator, Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from ksim.flow.request import Request
from ksim.memory.cache import Holding
from ksim.memory.extents import Extent
from ksim.memory.kv_cache import KVCache
from ksim.memory.vllm import VllmCache

Pair = tuple[Holding, Holding]

contents = st.lists(st.sampled_from("aab"), max_size=6)


class Comparison(RuleBasedStateMachine):
    """Both caches, and requests with a holding in each.

    Chunks are a block, several, half of one, or none that fits.
    """

    waiting = Bundle("waiting")
    running = Bundle("running")

    @initialize(capacity=st.integers(1, 30), block_tokens=st.sampled_from([1, 2, 4]),
                chunk_tokens=st.sampled_from([1, 2, 4, 6, 8]), prefix_caching=st.sampled_from([True, True, True, False]),
                plain_first=st.booleans())
    def build(self, capacity, block_tokens, chunk_tokens, prefix_caching, plain_first):
        self.runs = VllmCache(capacity, block_tokens, prefix_caching, plain_first)
        self.blocks = KVCache(capacity, block_tokens, prefix_caching, plain_first=plain_first)
        self.block_tokens, self.chunk_tokens = block_tokens, chunk_tokens
        self.pairs: list[Pair] = []
        self.live: list[Pair] = []
        self.known: dict[Holding, int] = {}

    def request(self, content: Sequence[str], prompt: int) -> Request:
        return Request(0, 0.0, prompt, 40, content, self.chunk_tokens)

    @rule(target=waiting, content=contents, prompt=st.integers(1, 30))
    def arrive(self, content, prompt):
        request = self.request(content, prompt)
        self.pairs.append((self.runs.holding(request), self.blocks.holding(request)))
        return self.pairs[-1]

    @rule(target=running, pair=consumes(waiting), known=st.integers(1, 40), chunk=st.integers(1, 40),
          spare=st.integers(0, 2), reads=st.sampled_from([True, True, True, False]), enters=st.booleans())
    def admit(self, pair, known, chunk, spare, reads, enters):
        one, other = pair
        hit, theirs = (cache.lookup(holding, known if reads else 1)
                       for cache, holding in ((self.runs, one), (self.blocks, other)))
        assert hit.tokens == theirs.tokens < known
        for most in range(hit.tokens + 1, known + 1):
            assert self.runs.fits(hit, most, spare) == self.blocks.fits(theirs, most, spare)
        tokens = min(known, hit.tokens + chunk)
        if not self.runs.fits(hit, tokens, spare):
            return multiple()
        self.runs.open(one, hit)
        self.blocks.open(other, theirs)
        assert self.runs.grow(one, tokens)
        assert self.blocks.grow(other, tokens)
        self.live.append(pair)
        self.known[one] = hit.tokens
        if enters:
            self.note(pair, tokens)
        return pair

    @rule(pair=running, more=st.integers(1, 20))
    def grow(self, pair, more):
        one, other = pair
        tokens = one.tokens + more
        assert self.runs.grow(one, tokens) == self.blocks.grow(other, tokens)

    @rule(more=st.lists(st.integers(0, 3), max_size=6))
    def grow_all_at_once(self, more):
        """What is taken at once and shared out later are the same blocks as those taken one by one."""
        grown = [(one, other, one.tokens + blocks * self.block_tokens)
                 for (one, other), blocks in zip(self.live, more, strict=False)]
        blocks = sum(more[: len(grown)])
        fit = self.runs.take(blocks)
        assert fit == (blocks <= self.blocks.pool.free)
        if not fit:
            return
        for _, other, tokens in grown:
            assert self.blocks.grow(other, tokens)
        for one, _, tokens in reversed(grown):
            self.runs.settle(one, tokens)

    @rule(pair=running, part=st.sampled_from([0.3, 0.7, 1.0, 1.0]))
    def enter(self, pair, part):
        self.note(pair, int(pair[0].tokens * part))

    def note(self, pair: Pair, tokens: int) -> None:
        """The first *tokens* tokens are known; a quiet holding may leave it for later."""
        one, other = pair
        self.known[one] = max(self.known[one], tokens)
        self.blocks.enter(other, tokens)
        if not self.runs.quiet(one):
            self.runs.enter(one, tokens)

    @rule(target=waiting, pair=consumes(running), finished=st.booleans())
    def close(self, pair, finished):
        """It may come back, and find what it left."""
        one, other = pair
        if not finished:
            self.runs.enter(one, self.known[one])
        self.runs.close(one, self.known[one] if finished else 0)
        self.blocks.close(other, self.known[one] if finished else 0)
        self.live.remove(pair)
        return pair

    @rule(content=contents, prompt=st.integers(1, 30), known=st.integers(1, 40))
    def look_up(self, content, prompt, known):
        request = self.request(content, prompt)
        assert self.runs.lookup(self.runs.holding(request), known).tokens == self.blocks.lookup(
            self.blocks.holding(request), known).tokens

    @rule()
    def all_find_the_same(self):
        for one, other in self.pairs:
            if (one, other) not in self.live:
                assert self.runs.lookup(one, 99).tokens == self.blocks.lookup(other, 99).tokens

    @rule(pair=running, steps=st.integers(0, 3), ahead=st.booleans())
    def foresee(self, pair, steps, ahead):
        one, other = pair
        if one.entered == self.known[one] - self.known[one] % self.block_tokens:  # not where it was left for later
            tokens = max(0, one.tokens - steps)
            assert self.runs.steps_until_event(one, tokens, ahead) == (
                self.blocks.steps_until_event(other, tokens, ahead))

    @invariant()
    def the_same_room(self):
        for one, other in getattr(self, "live", ()):
            assert one.tokens == len(other.blocks) * self.block_tokens
        if hasattr(self, "runs"):
            assert (self.runs.pool.free, self.runs.pool.used) == (self.blocks.pool.free, self.blocks.pool.used)

    @invariant()
    def all_that_is_free_is_in_the_queue(self):
        if hasattr(self, "runs"):
            pool, queue = self.runs.pool, list(self.queue())
            assert not any(extent.users for extent in queue)
            assert pool.free == pool.blank - pool.owed + sum(e.run.tokens for e in queue) // self.block_tokens
            copies = [extent for run in self.runs.tree for extent in run.copies]
            assert {extent for extent in copies if not extent.users} == set(queue)

    @invariant()
    def every_run_is_held_and_follows_its_parent(self):
        for run in self.runs.tree if hasattr(self, "runs") else ():
            assert run.copies and run.parent is not None and run.start == run.parent.end < run.end
            assert (run.start % self.block_tokens, run.end % self.block_tokens) == (0, 0)
            users = [user for extent in run.copies for user in extent.users]
            assert len(users) == len(set(users))

    def queue(self) -> Iterator[Extent]:
        ends = extent = self.runs.pool.first.before
        while (extent := extent.after) is not ends:
            yield extent

    def teardown(self):
        """At the end, all that is free is taken, block by block: the same is lost with each."""
        if hasattr(self, "runs"):
            one, other = Holding(), Holding()
            for cache, holding in ((self.runs, one), (self.blocks, other)):
                cache.open(holding, cache.lookup(holding, 1))
            for blocks in range(1, self.runs.pool.free + 1):
                assert self.runs.grow(one, blocks * self.block_tokens)
                assert self.blocks.grow(other, blocks * self.block_tokens)
                self.all_find_the_same()


TestVllmCache = Comparison.TestCase
TestVllmCache.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
