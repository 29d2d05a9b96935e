"""Whatever is done to it, vLLM's cache in runs answers as the one that goes block by block does."""

from collections.abc import Iterator
from random import Random

from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.request import Request
from ksim.kv_cache.cache import Hit, Holding
from ksim.kv_cache.extents import Extent
from ksim.kv_cache.kv_cache import KVCache
from ksim.kv_cache.vllm import VllmCache
from tests.properties import examples


@define(eq=False)
class Way:
    """A request in both caches; `known` tokens are known of what it holds."""

    one: Holding
    other: Holding
    known: int = 0


@define(eq=False)
class Walk:
    """Both caches, and requests that come, run in both, and leave, as `random` will have it."""

    random: Random
    runs: VllmCache
    blocks: KVCache
    chunk_tokens: int
    waiting: list[Way] = field(factory=list)
    running: list[Way] = field(factory=list)

    def step(self) -> None:
        """Do one thing to both."""
        many = len(self.running) > 4
        name = self.random.choices(
            ["admit", "grow", "take", "enter", "close", "look_up", "foresee"], [6, 2, 1, 3, 5 if many else 2, 1, 1])[0]
        getattr(self, name)()
        self.check_room()

    def request(self) -> Request:
        """One of few families of prompts, of which it goes its own way sooner or later."""
        content = [self.random.choices("ab", [5, 1])[0] for _ in range(self.random.randint(0, 7))]
        return Request(0, 0.0, self.random.randint(1, 40), 40, content, self.chunk_tokens)

    def arrive(self) -> Way:
        """A new request, or one that was here before."""
        if self.waiting and self.random.random() < 0.4:
            return self.waiting.pop(self.random.randrange(len(self.waiting)))
        request = self.request()
        return Way(self.runs.holding(request), self.blocks.holding(request))

    def admit(self) -> None:
        way, known, spare = self.arrive(), self.random.randint(1, 50), self.random.choice([0, 0, 1])
        hit, theirs = self.runs.lookup(way.one, known), self.blocks.lookup(way.other, known)
        assert hit.tokens == theirs.tokens < known
        if self.random.random() < 0.3:  # as one that does not read the cache
            hit = theirs = Hit(0)
        for most in range(hit.tokens + 1, known + 1):
            assert self.runs.fits(hit, most, spare) == self.blocks.fits(theirs, most, spare)
        tokens = min(known, hit.tokens + self.random.randint(1, 30))
        if not self.runs.fits(hit, tokens, spare):
            self.waiting.append(way)
            return
        self.runs.open(way.one, hit)
        self.blocks.open(way.other, theirs)
        assert self.runs.grow(way.one, tokens)
        assert self.blocks.grow(way.other, tokens)
        self.running.append(way)
        way.known = hit.tokens
        if self.random.random() < 0.6:
            self.note(way, tokens)

    def grow(self) -> None:
        if self.running:
            way = self.random.choice(self.running)
            tokens = way.one.tokens + self.random.randint(1, 10)
            assert self.runs.grow(way.one, tokens) == self.blocks.grow(way.other, tokens)

    def take(self) -> None:
        """What is taken at once and shared out later is what had been taken one by one."""
        grown = [(way, self.random.randint(0, 3)) for way in self.running]
        blocks = sum(more for _, more in grown)
        fit = self.runs.take(blocks)
        assert fit == (blocks <= self.blocks.pool.free)
        if fit:
            assert self.blocks.take(blocks)
            for way, more in self.random.sample(grown, len(grown)):
                tokens = way.one.tokens + more * self.runs.block_tokens
                self.runs.settle(way.one, tokens)
                self.blocks.settle(way.other, tokens)

    def enter(self) -> None:
        if self.running:
            way = self.random.choice(self.running)
            self.note(way, int(way.one.tokens * self.random.choice([0.5, 0.9, 1.0, 1.0])))

    def note(self, way: Way, tokens: int) -> None:
        """The first *tokens* tokens are known; a quiet holding may leave it for later."""
        way.known = max(way.known, tokens)
        self.blocks.enter(way.other, tokens)
        if not self.runs.quiet(way.one) or self.random.random() < 0.2:
            self.runs.enter(way.one, tokens)

    def close(self) -> None:
        """A request that is finished, or gives way; either may come back."""
        if not self.running:
            return
        way, finished = self.running.pop(self.random.randrange(len(self.running))), self.random.random() < 0.5
        if not finished:
            self.runs.enter(way.one, way.known)
        self.runs.close(way.one, way.known if finished else 0)
        self.blocks.close(way.other, way.known if finished else 0)
        self.waiting.append(way)

    def look_up(self) -> None:
        """All find the same, and so would a new one."""
        request = self.request()
        new = Way(self.runs.holding(request), self.blocks.holding(request))
        for way in [new, *self.waiting]:
            assert self.runs.lookup(way.one, 99).tokens == self.blocks.lookup(way.other, 99).tokens

    def foresee(self) -> None:
        for way in self.running:
            self.runs.enter(way.one, way.known)
            assert self.runs.lookup(way.one, 99).tokens == self.blocks.lookup(way.other, 99).tokens
            for tokens in range(way.known, way.one.tokens + 1):
                for ahead in (False, True):
                    assert self.runs.steps_until_event(way.one, tokens, ahead) == (
                        self.blocks.steps_until_event(way.other, tokens, ahead))

    def drain(self) -> None:
        """All leave, and then all that is free is taken, block by block: the same is lost with each."""
        while self.running:
            self.close()
        one, other = Holding(), Holding()
        self.runs.open(one, Hit(0))
        self.blocks.open(other, Hit(0))
        for blocks in range(1, self.runs.capacity + 1):
            assert self.runs.grow(one, blocks * self.runs.block_tokens)
            assert self.blocks.grow(other, blocks * self.runs.block_tokens)
            self.look_up()
        assert not list(self.runs.tree)

    def check_room(self) -> None:
        """As much is free and held, and all that is free is blank or waits in the queue."""
        pool, size = self.runs.pool, self.runs.block_tokens
        assert (pool.free, pool.used) == (self.blocks.pool.free, self.blocks.pool.used)
        assert all(way.one.tokens == len(way.other.blocks) * size for way in self.running)
        queue = list(self.queue())
        assert pool.free == pool.blank - pool.owed + sum(extent.run.tokens for extent in queue) // size
        copies = [extent for run in self.runs.tree for extent in run.copies]
        assert {extent for extent in copies if not extent.users} == set(queue)

    def check_runs(self) -> None:
        """Each is held, follows its parent, and is used by nobody twice."""
        for run in self.runs.tree:
            assert run.copies and run.parent is not None and run.start == run.parent.end < run.end
            assert run.start % self.runs.block_tokens == run.end % self.runs.block_tokens == 0
            users = [user for extent in run.copies for user in extent.users]
            assert len(users) == len(set(users))

    def queue(self) -> Iterator[Extent]:
        ends = extent = self.runs.pool.first.before
        while (extent := extent.after) is not ends:
            yield extent


@given(seed=st.integers(0, 2**32), capacity=st.sampled_from([4, 15, 30, 60, 100]),
       block_tokens=st.sampled_from([1, 2, 4]), chunk_tokens=st.sampled_from([1, 4, 6, 8]),
       caches=st.sampled_from([True, True, True, False]), plain_first=st.booleans(),
       steps=st.sampled_from([15, 120]))
@examples(100)
def test_both_answer_the_same(seed, capacity, block_tokens, chunk_tokens, caches, plain_first, steps):
    walk = Walk(Random(seed), VllmCache(capacity, block_tokens, caches, plain_first),
                KVCache(capacity, block_tokens, caches, plain_first=plain_first), chunk_tokens)
    for _ in range(steps):
        walk.step()
        walk.check_runs()
    walk.drain()
