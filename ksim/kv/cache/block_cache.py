"""vLLM's KV cache of one engine, block by block: who holds which block, and which blocks others can reuse."""

from collections import deque
from functools import reduce
from typing import ClassVar, cast

from attrs import define, field

from ksim.flow.request import BlockKeys, Request
from ksim.kv.cache import BlockTable, PrefixHit
from ksim.kv.cache.block_pool import BlockNode, BlockPool, BlockTrie, EvictionPool, TellingTrie, TrackedNode
from ksim.kv.cache.evictions import Eviction


@define
class BlockCache:
    """A cache of `capacity` blocks of `block_tokens` tokens; without `prefix_caching`, no block is ever reused.

    Free blocks are evicted in vLLM's order, or in that of an `eviction`.
    VllmCache decides as this cache does without an eviction, and is faster;
    tests compare the two.

    With `unhashed_first`, freed blocks without reusable content are taken before
    all others.  Older releases of vLLM queue them at the back like the rest.  An
    `eviction` has no key for them, so they always go first then.

    With `keys`, its tree tells what enters and leaves it.
    """

    capacity: int
    block_tokens: int
    prefix_caching: bool = True
    eviction: Eviction | None = None
    unhashed_first: bool = True
    keys: BlockKeys | None = None
    pool: BlockPool = field(init=False)
    tree: BlockTrie = field(init=False)
    _reserved: deque[int] = field(factory=deque, init=False)
    _tick: int = field(default=0, init=False)

    publishes_computed: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        if self.keys is not None:
            self.tree = TellingTrie(self.keys, tracked=self.eviction is not None)
        else:
            self.tree = BlockTrie(BlockNode if self.eviction is None else TrackedNode)
        if self.eviction is None:
            self.pool = BlockPool(self.capacity)
        else:
            self.pool = EvictionPool(self.capacity, self.eviction, self._tracked)

    def block_table(self, request: Request) -> BlockTable:
        """An empty block table for *request*, with one name per full block."""
        return BlockTable(request.content(self.block_tokens))

    def blocks(self, tokens: int) -> int:
        """How many blocks *tokens* tokens need."""
        return -(-tokens // self.block_tokens)

    def find_prefix(self, table: BlockTable, num_tokens: int) -> PrefixHit:
        """The longest prefix of full cached blocks among the first *num_tokens* - 1 tokens.  Changes nothing."""
        if not self.prefix_caching:
            return PrefixHit(0)
        nodes = self.tree.match(table.block_names(0, (num_tokens - 1) // self.block_tokens))
        return PrefixHit(len(nodes) * self.block_tokens, nodes)

    def can_allocate(self, hit: PrefixHit, tokens: int, spare: int = 0) -> bool:
        """Whether there is room for *tokens* tokens that begin with *hit*, with *spare* blocks left free."""
        users = self.pool.users
        evictable: int = sum(users[node.blocks[0]] == 0 for node in hit.nodes)
        return self.blocks(tokens) - len(hit.nodes) + evictable + spare <= self.pool.free

    can_admit = can_allocate

    def attach_prefix(self, table: BlockTable, hit: PrefixHit) -> None:
        """Start the empty *table* with the blocks of *hit*."""
        assert not table.blocks, "a request that holds blocks was admitted again"
        table.blocks = [node.blocks[0] for node in hit.nodes]
        for block in table.blocks:
            self.pool.share(block)
        table.published = len(hit.nodes) * self.block_tokens
        table.node = hit.nodes[-1] if hit.nodes else self.tree.root
        if self.eviction is not None:
            self._touch(table, 0)
            for node in hit.nodes:
                node.hits += 1

    def allocate(self, table: BlockTable, tokens: int) -> bool:
        """Give *table* room for *tokens* tokens in all, from the free blocks; all or nothing."""
        missing = self.blocks(tokens) - len(table.blocks)
        if missing > self.pool.free:
            return False
        for _ in range(missing):
            block = self.pool.take()
            self.tree.evict(block)
            table.blocks.append(block)
        return True

    def reserve(self, blocks: int) -> bool:
        """Take *blocks* free blocks, which `assign` gives to tables later; all or nothing."""
        taken = BlockTable()
        if not self.allocate(taken, blocks * self.block_tokens):
            return False
        self._reserved += taken.blocks
        return True

    def assign(self, table: BlockTable, tokens: int) -> None:
        """Give *table* room for *tokens* tokens in all, from reserved blocks."""
        missing = self.blocks(tokens) - len(table.blocks)
        table.blocks += [self._reserved.popleft() for _ in range(missing)]

    def is_private(self, table: BlockTable) -> bool:
        """Return False: every block is published when it is full."""
        return False

    def publish(self, table: BlockTable, tokens: int) -> None:
        """Let others find the full blocks among the first *tokens* tokens of *table*."""
        if not self.prefix_caching:
            return
        first, full, node = table.published // self.block_tokens, tokens // self.block_tokens, table.node
        if full <= first:
            return
        assert node is not None, "a request without blocks cannot share them"
        if self.tree.lost:
            node = reduce(self.tree.child, table.block_names(0, first), self.tree.root)
        for block, name in zip(table.blocks[first:full], table.block_names(first, full), strict=True):
            node = self.tree.insert(node, name, block)
        table.published, table.node = full * self.block_tokens, node
        if self.eviction is not None:
            self._touch(table, first, published=True)

    def publish_computed(self, table: BlockTable, tokens: int) -> None:
        """Do nothing: blocks are published when they are scheduled."""

    def free(self, table: BlockTable, tokens: int = 0) -> None:
        """Release all blocks of *table*, last block first; a finished request has computed *tokens* tokens."""
        if tokens:
            self.publish(table, tokens)
        if self.eviction is not None and table.blocks:
            self._touch(table, 0)
        unhashed_first = self.unhashed_first or self.eviction is not None
        front: list[int] = []
        back: list[int] = []
        for block in reversed(table.blocks):
            if self.pool.release(block):
                (front if unhashed_first and not self.tree.holds(block) else back).append(block)
        self.pool.to_front(front)
        self.pool.to_back(back)
        table.blocks = []
        table.published = 0
        table.node = None

    def held_blocks(self, table: BlockTable) -> int:
        """How many blocks *table* has."""
        return len(table.blocks)

    def same_block(self, table: BlockTable, other: BlockTable, place: int) -> bool:
        """Whether both tables have the very same block at *place*."""
        return table.blocks[place: place + 1] == other.blocks[place: place + 1] != []

    def invalidate(self, table: BlockTable, place: int) -> None:
        """Forget what is in the blocks of *table* from *place* on."""
        self.tree.lost = True
        for block in reversed(table.blocks[place:]):
            self.tree.evict(block)

    def steps_until_change(self, table: BlockTable, tokens: int, async_scheduling: bool) -> int:
        """How many decode steps after the first *tokens* tokens need no block and fill none."""
        steps = len(table.blocks) * self.block_tokens - tokens
        if self.prefix_caching:  # a block is published when its last token is known
            until_full = table.published + self.block_tokens - tokens - 1 + async_scheduling
            steps = min(steps, max(until_full, 0))
        return steps

    def _tracked(self, block: int) -> TrackedNode:
        return cast("TrackedNode", self.tree.node(block))

    def _touch(self, table: BlockTable, first: int, published: bool = False) -> None:
        """Record a use of the published blocks of *table*, from block number *first* on."""
        self._tick += 1
        node = table.node
        for number in range(table.published // self.block_tokens, first, -1):
            node.touch(self._tick, number * self.block_tokens, fresh=published and len(node.blocks) == 1)
            node = node.parent
