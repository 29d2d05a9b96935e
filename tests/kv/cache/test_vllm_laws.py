"""Whatever is done to it, vLLM's cache in runs answers as the one that goes block by block does."""

from collections.abc import Iterator
from random import Random

import pytest
from attrs import define, field
from hypothesis import example, given
from hypothesis import strategies as st

from ksim.flow.request import BlockKeys, Request
from ksim.kv.cache import BlockTable, PrefixHit
from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.vllm import Extent, VllmCache
from tests.kv.cache.trees import nodes
from tests.properties import examples


@define(eq=False)
class Pair:
    """The block tables of one request in both caches; `known` of its tokens are known."""

    in_runs: BlockTable
    in_blocks: BlockTable
    known: int = 0


@define(eq=False)
class Walk:
    """Both caches, and requests that come, run in both and leave at `random`."""

    random: Random
    runs: VllmCache
    blocks: BlockCache
    chunk_tokens: int
    waiting: list[Pair] = field(factory=list)
    running: list[Pair] = field(factory=list)
    held: list[Pair] = field(factory=list)  # that have ended, and share blocks with one that lost its content
    spoils: int = 0  # how often content is lost while blocks are in use

    def step(self) -> None:
        """Do one thing to both."""
        weights = {"admit": 6, "allocate": 2, "reserve": 1, "publish": 3, "free": 5 if len(self.running) > 4 else 2,
                   "find_prefix": 1, "foresee": 1, "compare": 1, "spoil": self.spoils, "let_go": 1}
        (name,) = self.random.choices(list(weights), list(weights.values()))
        getattr(self, name)()
        self.check_room()

    def request(self) -> Request:
        """A request of one of few families of prompts, from which it parts sooner or later."""
        content = [self.random.choices("ab", [5, 1])[0] for _ in range(self.random.randint(0, 7))]
        return Request(0, 0.0, self.random.randint(1, 40), 40, content, self.chunk_tokens)

    def arrive(self) -> Pair:
        """A new request, or one that was here before."""
        if self.waiting and self.random.random() < 0.4:
            return self.waiting.pop(self.random.randrange(len(self.waiting)))
        request = self.request()
        return Pair(self.runs.block_table(request), self.blocks.block_table(request))

    def admit(self) -> None:
        pair, known, spare = self.arrive(), self.random.randint(1, 50), self.random.choice([0, 0, 1])
        hit, block_hit = self.runs.find_prefix(pair.in_runs, known), self.blocks.find_prefix(pair.in_blocks, known)
        assert hit.tokens == block_hit.tokens < known
        if self.random.random() < 0.3:  # as one that does not read the cache
            hit = block_hit = PrefixHit(0)
        for most in range(hit.tokens + 1, known + 1):
            assert self.runs.can_allocate(hit, most, spare) == self.blocks.can_allocate(block_hit, most, spare)
        tokens = min(known, hit.tokens + self.random.randint(1, 30))
        if not self.runs.can_allocate(hit, tokens, spare):
            self.waiting.append(pair)
            return
        self.runs.attach_prefix(pair.in_runs, hit)
        self.blocks.attach_prefix(pair.in_blocks, block_hit)
        assert self.runs.allocate(pair.in_runs, tokens)
        assert self.blocks.allocate(pair.in_blocks, tokens)
        self.running.append(pair)
        pair.known = hit.tokens
        if self.random.random() < 0.6:
            self.note(pair, tokens)

    def allocate(self) -> None:
        if self.running:
            pair = self.random.choice(self.running)
            tokens = pair.in_runs.num_slots + self.random.randint(1, 10)
            assert self.runs.allocate(pair.in_runs, tokens) == self.blocks.allocate(pair.in_blocks, tokens)

    def reserve(self) -> None:
        """What is reserved at once and assigned later is what allocating one by one takes."""
        grown = [(pair, self.random.randint(0, 3)) for pair in self.running]
        blocks = sum(more for _, more in grown)
        fit = self.runs.reserve(blocks)
        assert fit == (blocks <= self.blocks.pool.free)
        if fit:
            assert self.blocks.reserve(blocks)
            for pair, more in self.random.sample(grown, len(grown)):
                tokens = pair.in_runs.num_slots + more * self.runs.block_tokens
                self.runs.assign(pair.in_runs, tokens)
                self.blocks.assign(pair.in_blocks, tokens)

    def publish(self) -> None:
        if self.running:
            pair = self.random.choice(self.running)
            self.note(pair, int(pair.in_runs.num_slots * self.random.choice([0.5, 0.9, 1.0, 1.0])))

    def note(self, pair: Pair, tokens: int) -> None:
        """Publish the first *tokens* tokens; a private table may put it off."""
        pair.known = max(pair.known, tokens)
        self.blocks.publish(pair.in_blocks, tokens)
        if not self.runs.is_private(pair.in_runs) or self.random.random() < 0.2:
            self.runs.publish(pair.in_runs, tokens)

    def free(self) -> None:
        """Free a request that has finished or is preempted; either may come back."""
        if not self.running:
            return
        pair, finished = self.running.pop(self.random.randrange(len(self.running))), self.random.random() < 0.5
        if not finished:
            self.runs.publish(pair.in_runs, pair.known)
        self.runs.free(pair.in_runs, pair.known if finished else 0)
        self.blocks.free(pair.in_blocks, pair.known if finished else 0)
        self.waiting.append(pair)

    def compare(self) -> None:
        """Two requests have the same block at a place in both caches, or in neither."""
        for pair in self.running:
            assert self.runs.held_blocks(pair.in_runs) == self.blocks.held_blocks(pair.in_blocks)
            self.sharers(pair, self.random.randint(0, 12))

    def sharers(self, pair: Pair, place: int) -> list[Pair]:
        """The running requests that have the block of *pair* at *place*."""
        same = [self.runs.same_block(pair.in_runs, other.in_runs, place) for other in self.running]
        assert same == [self.blocks.same_block(pair.in_blocks, other.in_blocks, place) for other in self.running]
        return [other for other, shares in zip(self.running, same, strict=True) if shares]

    def spoil(self) -> None:
        """The content of blocks in use is lost from some place on; whoever has that block ends, or only holds it."""
        if not self.running:
            return
        pair = self.random.choice(self.running)
        place = self.random.randint(0, 8)
        for other in self.running:
            self.runs.publish(other.in_runs, other.known)
        sharers = self.sharers(pair, place)
        self.runs.invalidate(pair.in_runs, place)
        self.blocks.invalidate(pair.in_blocks, place)
        for other in sharers:
            self.running.remove(other)
            self.held.append(other)
        if sharers:
            self.held.remove(pair)
            self.end(pair)

    def let_go(self) -> None:
        if self.held:
            self.end(self.held.pop(self.random.randrange(len(self.held))))

    def end(self, pair: Pair) -> None:
        self.runs.free(pair.in_runs)
        self.blocks.free(pair.in_blocks)

    def find_prefix(self) -> None:
        """Waiting requests and a new one find the same prefix in both."""
        request = self.request()
        new = Pair(self.runs.block_table(request), self.blocks.block_table(request))
        for pair in [new, *self.waiting]:
            assert self.runs.find_prefix(pair.in_runs, 99).tokens == self.blocks.find_prefix(pair.in_blocks, 99).tokens

    def foresee(self) -> None:
        for pair in self.running:
            self.runs.publish(pair.in_runs, pair.known)
            assert self.runs.find_prefix(pair.in_runs, 99).tokens == self.blocks.find_prefix(pair.in_blocks, 99).tokens
            for tokens in range(pair.known, pair.in_runs.num_slots + 1):
                for async_scheduling in (False, True):
                    assert self.runs.steps_until_change(pair.in_runs, tokens, async_scheduling) == (
                        self.blocks.steps_until_change(pair.in_blocks, tokens, async_scheduling))

    def drain(self) -> None:
        """Free all requests, then take all blocks one by one: the same content is lost with each."""
        while self.running:
            self.free()
        while self.held:
            self.let_go()
        in_runs, in_blocks = BlockTable(), BlockTable()
        self.runs.attach_prefix(in_runs, PrefixHit(0))
        self.blocks.attach_prefix(in_blocks, PrefixHit(0))
        for blocks in range(1, self.runs.capacity + 1):
            assert self.runs.allocate(in_runs, blocks * self.runs.block_tokens)
            assert self.blocks.allocate(in_blocks, blocks * self.runs.block_tokens)
            self.find_prefix()
        assert not list(nodes(self.runs.tree))

    def check_room(self) -> None:
        """As many blocks are free and used in both, and free ones are unhashed or queued."""
        pool, size = self.runs.pool, self.runs.block_tokens
        assert (pool.free, pool.used) == (self.blocks.pool.free, self.blocks.pool.used)
        assert all(pair.in_runs.num_slots == len(pair.in_blocks.blocks) * size for pair in self.running)
        queue = list(self.queue())
        assert pool.free == pool.unhashed - pool.to_evict + sum(extent.node.tokens for extent in queue) // size
        extents = [extent for run in nodes(self.runs.tree) for extent in run.extents]
        assert {extent for extent in extents if not extent.users} == set(queue)

    def check_nodes(self) -> None:
        """Every node has an extent, or had one that was lost, and follows its parent, and nobody uses it twice."""
        for run in nodes(self.runs.tree):
            assert run.extents or (self.runs.tree.lost and run.children)
            assert run.parent is not None and run.start == run.parent.end < run.end
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
       steps=st.sampled_from([15, 120]), spoils=st.sampled_from([0, 2]))
@example(seed=430, capacity=30, block_tokens=2, chunk_tokens=4, caches=True, unhashed_first=False, steps=60, spoils=2)
@examples(200)
def test_both_answer_the_same(seed, capacity, block_tokens, chunk_tokens, caches, unhashed_first, steps, spoils):
    walk = Walk(Random(seed), VllmCache(capacity, block_tokens, caches, unhashed_first),
                BlockCache(capacity, block_tokens, caches, unhashed_first=unhashed_first), chunk_tokens,
                spoils=spoils)
    for _ in range(steps):
        walk.step()
        walk.check_nodes()
    walk.drain()


@pytest.mark.parametrize("made", [VllmCache, BlockCache, lambda *sizes: BlockCache(*sizes, keys=BlockKeys(4))])
def test_what_follows_lost_content_is_found_again_once_that_is_back(made):
    """vLLM finds a block by the hash of its content and of all before it, whoever computed what is before it."""
    cache, request = made(20, 4), Request(0, 0.0, 24, 8, list("abcdef"), 4)
    first, again = cache.block_table(request), cache.block_table(request)
    for table, tokens in ((first, 12), (again, 8)):
        cache.attach_prefix(table, PrefixHit(0))
        assert cache.allocate(table, 24)
        cache.publish(table, tokens)
        if table is first:
            cache.invalidate(first, 0)
    cache.publish(first, 24)
    assert cache.find_prefix(cache.block_table(request), 25).tokens == 8  # the third block is lost
    cache.publish(again, 12)
    assert cache.find_prefix(cache.block_table(request), 25).tokens == 24
