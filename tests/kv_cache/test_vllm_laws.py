"""Whatever is done to it, vLLM's cache in runs answers as the one that goes block by block does."""

from collections.abc import Iterator
from random import Random

from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.request import Request
from ksim.kv_cache.block_cache import BlockCache
from ksim.kv_cache.cache import BlockTable, PrefixHit
from ksim.kv_cache.extents import Extent
from ksim.kv_cache.vllm import VllmCache
from tests.kv_cache.trees import nodes
from tests.properties import examples


@define(eq=False)
class Way:
    """A request in both caches; `known` tokens are known of what it holds."""

    one: BlockTable
    other: BlockTable
    known: int = 0


@define(eq=False)
class Walk:
    """Both caches, and requests that come, run in both, and leave, as `random` will have it."""

    random: Random
    runs: VllmCache
    blocks: BlockCache
    chunk_tokens: int
    waiting: list[Way] = field(factory=list)
    running: list[Way] = field(factory=list)

    def step(self) -> None:
        """Do one thing to both."""
        weights = {"admit": 6, "allocate": 2, "reserve": 1, "publish": 3, "free": 5 if len(self.running) > 4 else 2,
                   "find_prefix": 1, "foresee": 1}
        (name,) = self.random.choices(list(weights), list(weights.values()))
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
        return Way(self.runs.block_table(request), self.blocks.block_table(request))

    def admit(self) -> None:
        way, known, spare = self.arrive(), self.random.randint(1, 50), self.random.choice([0, 0, 1])
        hit, theirs = self.runs.find_prefix(way.one, known), self.blocks.find_prefix(way.other, known)
        assert hit.tokens == theirs.tokens < known
        if self.random.random() < 0.3:  # as one that does not read the cache
            hit = theirs = PrefixHit(0)
        for most in range(hit.tokens + 1, known + 1):
            assert self.runs.can_allocate(hit, most, spare) == self.blocks.can_allocate(theirs, most, spare)
        tokens = min(known, hit.tokens + self.random.randint(1, 30))
        if not self.runs.can_allocate(hit, tokens, spare):
            self.waiting.append(way)
            return
        self.runs.attach_prefix(way.one, hit)
        self.blocks.attach_prefix(way.other, theirs)
        assert self.runs.allocate(way.one, tokens)
        assert self.blocks.allocate(way.other, tokens)
        self.running.append(way)
        way.known = hit.tokens
        if self.random.random() < 0.6:
            self.note(way, tokens)

    def allocate(self) -> None:
        if self.running:
            way = self.random.choice(self.running)
            tokens = way.one.num_slots + self.random.randint(1, 10)
            assert self.runs.allocate(way.one, tokens) == self.blocks.allocate(way.other, tokens)

    def reserve(self) -> None:
        """What is reserved at once and assigned later is what allocating one by one takes."""
        grown = [(way, self.random.randint(0, 3)) for way in self.running]
        blocks = sum(more for _, more in grown)
        fit = self.runs.reserve(blocks)
        assert fit == (blocks <= self.blocks.pool.free)
        if fit:
            assert self.blocks.reserve(blocks)
            for way, more in self.random.sample(grown, len(grown)):
                tokens = way.one.num_slots + more * self.runs.block_tokens
                self.runs.assign(way.one, tokens)
                self.blocks.assign(way.other, tokens)

    def publish(self) -> None:
        if self.running:
            way = self.random.choice(self.running)
            self.note(way, int(way.one.num_slots * self.random.choice([0.5, 0.9, 1.0, 1.0])))

    def note(self, way: Way, tokens: int) -> None:
        """The first *tokens* tokens are known; a private table may leave it for later."""
        way.known = max(way.known, tokens)
        self.blocks.publish(way.other, tokens)
        if not self.runs.is_private(way.one) or self.random.random() < 0.2:
            self.runs.publish(way.one, tokens)

    def free(self) -> None:
        """A request that is finished, or gives way; either may come back."""
        if not self.running:
            return
        way, finished = self.running.pop(self.random.randrange(len(self.running))), self.random.random() < 0.5
        if not finished:
            self.runs.publish(way.one, way.known)
        self.runs.free(way.one, way.known if finished else 0)
        self.blocks.free(way.other, way.known if finished else 0)
        self.waiting.append(way)

    def find_prefix(self) -> None:
        """All find the same, and so would a new one."""
        request = self.request()
        new = Way(self.runs.block_table(request), self.blocks.block_table(request))
        for way in [new, *self.waiting]:
            assert self.runs.find_prefix(way.one, 99).tokens == self.blocks.find_prefix(way.other, 99).tokens

    def foresee(self) -> None:
        for way in self.running:
            self.runs.publish(way.one, way.known)
            assert self.runs.find_prefix(way.one, 99).tokens == self.blocks.find_prefix(way.other, 99).tokens
            for tokens in range(way.known, way.one.num_slots + 1):
                for ahead in (False, True):
                    assert self.runs.steps_until_change(way.one, tokens, ahead) == (
                        self.blocks.steps_until_change(way.other, tokens, ahead))

    def drain(self) -> None:
        """All leave, and then all that is free is taken, block by block: the same is lost with each."""
        while self.running:
            self.free()
        one, other = BlockTable(), BlockTable()
        self.runs.attach_prefix(one, PrefixHit(0))
        self.blocks.attach_prefix(other, PrefixHit(0))
        for blocks in range(1, self.runs.capacity + 1):
            assert self.runs.allocate(one, blocks * self.runs.block_tokens)
            assert self.blocks.allocate(other, blocks * self.runs.block_tokens)
            self.find_prefix()
        assert not list(nodes(self.runs.tree))

    def check_room(self) -> None:
        """As much is free and held, and all that is free is unhashed or waits in the queue."""
        pool, size = self.runs.pool, self.runs.block_tokens
        assert (pool.free, pool.used) == (self.blocks.pool.free, self.blocks.pool.used)
        assert all(way.one.num_slots == len(way.other.blocks) * size for way in self.running)
        queue = list(self.queue())
        assert pool.free == pool.unhashed - pool.to_evict + sum(extent.node.tokens for extent in queue) // size
        extents = [extent for run in nodes(self.runs.tree) for extent in run.extents]
        assert {extent for extent in extents if not extent.users} == set(queue)

    def check_runs(self) -> None:
        """Each is held, follows its parent, and is used by nobody twice."""
        for run in nodes(self.runs.tree):
            assert run.extents and run.parent is not None and run.start == run.parent.end < run.end
            assert run.start % self.runs.block_tokens == run.end % self.runs.block_tokens == 0
            users = [user for extent in run.extents for user in extent.users]
            assert len(users) == len(set(users))

    def queue(self) -> Iterator[Extent]:
        ends = extent = self.runs.pool.first.previous
        while (extent := extent.next) is not ends:
            yield extent


@given(seed=st.integers(0, 2**32), capacity=st.sampled_from([4, 15, 30, 60, 100]),
       block_tokens=st.sampled_from([1, 2, 4]), chunk_tokens=st.sampled_from([1, 4, 6, 8]),
       caches=st.sampled_from([True, True, True, False]), unhashed_first=st.booleans(),
       steps=st.sampled_from([15, 120]))
@examples(100)
def test_both_answer_the_same(seed, capacity, block_tokens, chunk_tokens, caches, unhashed_first, steps):
    walk = Walk(Random(seed), VllmCache(capacity, block_tokens, caches, unhashed_first),
                BlockCache(capacity, block_tokens, caches, unhashed_first=unhashed_first), chunk_tokens)
    for _ in range(steps):
        walk.step()
        walk.check_runs()
    walk.drain()
