"""vLLM's KV cache of one engine, block by block: who holds which block, and which blocks others can reuse.

The order is vLLM's (v1/core/block_pool.py, 0.33).  Blocks are taken from the
front of a queue.  A freed request returns its blocks last first: those without
reusable content go to the front, the others to the back.  So the least recently
used block is evicted first, and the tail of a prompt before its head.

In the trie of cached blocks, a node stands for the content of one full block, a path for a prefix.  A `TellingTrie`
tells what enters and leaves it, as vLLM's KV events do.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import reduce
from typing import ClassVar, cast

from attrs import define, field

from ksim.flow.request import BlockKeys, Request
from ksim.kv.cache import BlockTable, PrefixHit
from ksim.kv.cache.evictions import Eviction, EvictionQueue, Tracked

__all__ = ["BlockCache", "BlockNode", "BlockPool", "BlockTrie", "EvictionPool", "TellingTrie", "TrackedNode"]


@define
class BlockPool:
    """Blocks 0 to `capacity` - 1; `users` says of each that was ever taken how many requests hold it.

    Blocks that were never taken are only counted: a small model leaves room for a hundred million.
    """

    capacity: int
    users: list[int] = field(factory=list, init=False)
    _front: dict[int, None] = field(factory=dict, init=False)
    _back: "OrderedDict[int, None]" = field(factory=OrderedDict, init=False)

    @property
    def ref_counts(self) -> list[int]:
        """How many requests hold each block."""
        return self.users + [0] * (self.capacity - len(self.users))

    @property
    def free(self) -> int:
        return len(self._front) + self.capacity - len(self.users) + len(self._back)

    @property
    def used(self) -> int:
        return self.capacity - self.free

    def take(self) -> int:
        """Take the block at the front of the queue, which must not be empty."""
        if not self._front and len(self.users) < self.capacity:
            self.users.append(1)
            return len(self.users) - 1
        block, _ = self._front.popitem() if self._front else self._back.popitem(last=False)
        self.users[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a user to *block*, which was taken before, and may be free or in use."""
        if self.users[block] == 0:
            del (self._front if block in self._front else self._back)[block]
        self.users[block] += 1

    def release(self, block: int) -> bool:
        """Remove a user from *block*; return whether it was the last, so that the block must be queued."""
        assert self.users[block] > 0, "a block was given back more often than it was taken"
        self.users[block] -= 1
        return self.users[block] == 0

    def to_back(self, blocks: Iterable[int]) -> None:
        """Queue *blocks* behind all others, in their order."""
        for block in blocks:
            self._back[block] = None

    def to_front(self, blocks: list[int]) -> None:
        """Queue *blocks* before all others, the first of them foremost."""
        for block in reversed(blocks):
            self._front[block] = None


@define
class EvictionPool(BlockPool):
    """A pool that reuses blocks with reusable content in the order of an `eviction`, after all others.

    `node` gives the node of a block, for the eviction to look at.
    """

    eviction: Eviction
    node: Callable[[int], Tracked]
    _evictable: EvictionQueue[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._evictable = EvictionQueue(self.eviction)

    @property
    def free(self) -> int:
        return super().free + len(self._evictable)

    def take(self) -> int:
        if super().free:
            return super().take()
        block = self._evictable.pop()
        self.users[block] = 1
        return block

    def share(self, block: int) -> None:
        if block in self._evictable:
            self._evictable.discard(block)
            self.users[block] = 1
        else:
            super().share(block)

    def to_back(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._evictable.add(block, self.node(block))


class BlockNode:
    """The content of one block after a given prefix, and the `blocks` that hold its keys and values.

    Requests that compute equal tokens at the same time fill a block each, so a
    node may have several.  A hit takes the one that was inserted first.
    """

    __slots__ = ("blocks", "children", "name", "parent")

    def __init__(self, name: Hashable, parent: "BlockNode | None"):
        self.name = name
        self.parent = parent
        self.children: dict[Hashable, BlockNode] = {}
        self.blocks: list[int] = []


class TrackedNode(BlockNode):
    """A node with a history for evictions to look at; times are ticks of the cache."""

    __slots__ = ("created", "depth", "hits", "last_use")

    def __init__(self, name: Hashable, parent: "BlockNode | None"):
        super().__init__(name, parent)
        self.depth = 0
        self.hits = 0
        self.created = 0
        self.last_use = 0

    def touch(self, tick: int, depth: int, fresh: bool) -> None:
        """Record a use at *tick*; the node ends *depth* tokens into the prompt.  A *fresh* node has no history."""
        if fresh:
            self.created, self.hits = tick, 0
        self.last_use = tick
        self.depth = depth


class BlockTrie:
    """A trie of the blocks that can be reused, by their content.

    Where content of blocks in use was `lost`, the nodes of those who use them may be gone, or others be in their place.
    """

    __slots__ = ("_nodes", "lost", "root")

    def __init__(self, kind: type[BlockNode] = BlockNode):
        self.root = kind(None, None)
        self.lost = False
        self._nodes = dict[int, BlockNode]()

    def match(self, names: Iterable[Hashable]) -> list[BlockNode]:
        """The nodes of the longest cached prefix of *names*.  Changes nothing."""
        path, node = [], self.root
        for name in names:
            child = node.children.get(name)
            if child is None or not child.blocks:
                break
            path.append(child)
            node = child
        return path

    def child(self, node: BlockNode, name: Hashable) -> BlockNode:
        """The node of *name* after the prefix that ends in *node*, which is made if need be."""
        child = node.children.get(name)
        if child is None:
            child = node.children[name] = type(node)(name, node)
        return child

    def insert(self, node: BlockNode, name: Hashable, block: int) -> BlockNode:
        """Record that *block* holds *name* after the prefix that ends in *node*; return its node."""
        child = self.child(node, name)
        child.blocks.append(block)
        self._nodes[block] = child
        return child

    def evict(self, block: int) -> None:
        """Forget the content of *block*, and remove nodes that are left without blocks and children."""
        node = self._nodes.pop(block, None)
        if node is None:
            return
        node.blocks.remove(block)
        while node.parent is not None and not node.blocks and not node.children:
            if node.parent.children.get(node.name) is node:  # it may be removed already, and have come back since
                del node.parent.children[node.name]
            node = node.parent

    def holds(self, block: int) -> bool:
        """Whether the content of *block* can be reused."""
        return block in self._nodes

    def node(self, block: int) -> BlockNode:
        """The node of *block*, whose content can be reused."""
        return self._nodes[block]

    def __iter__(self) -> Iterator[BlockNode]:
        """All nodes that have blocks."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            if node.blocks:
                yield node
            stack.extend(node.children.values())


#: The keys of the beginning, and of blocks that only their own request could find.
_ROOT, _PRIVATE = -1, -2


class _Keyed(BlockNode):
    __slots__ = ("key",)

    key: int


class _KeyedTracked(TrackedNode):
    __slots__ = ("key",)

    key: int


class TellingTrie(BlockTrie):
    """Notes in `tells` the keys of contents that enter, and ~key of those of which no block is left.

    Only `keys` of blocks that other requests may find are told.  Whoever reads `tells` clears it.
    """

    __slots__ = ("keys", "tells")

    def __init__(self, keys: BlockKeys, tracked: bool = False):
        super().__init__(_KeyedTracked if tracked else _Keyed)
        self.root.key = _ROOT  # type: ignore[attr-defined]
        self.keys = keys
        self.tells: list[int] = []

    def child(self, node: BlockNode, name: Hashable) -> BlockNode:
        child = super().child(node, name)
        if not hasattr(child, "key"):
            child.key = self._key(node, name)  # type: ignore[attr-defined]
        return child

    def insert(self, node: BlockNode, name: Hashable, block: int) -> BlockNode:
        child = super().insert(node, name, block)
        if len(child.blocks) == 1 and child.key != _PRIVATE:  # type: ignore[attr-defined]
            self.tells.append(child.key)  # type: ignore[attr-defined]
        return child

    def _key(self, node: BlockNode, name: Hashable) -> int:
        """The key of what is called *name* after *node*; a block table is the name of what has none."""
        before: int = node.key  # type: ignore[attr-defined]
        return _PRIVATE if before == _PRIVATE or isinstance(name, BlockTable) else self.keys.after(before, name)

    def evict(self, block: int) -> None:
        node = self._nodes.get(block)
        super().evict(block)
        if node is not None and not node.blocks and node.key != _PRIVATE:  # type: ignore[attr-defined]
            self.tells.append(~node.key)  # type: ignore[attr-defined]


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
        """Publish the full blocks among the first *tokens* tokens of *table*."""
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

    def clear(self) -> None:
        """Forget all that no request uses: have all free blocks taken once, and given back."""
        table = BlockTable()
        self.allocate(table, self.pool.free * self.block_tokens)
        self.free(table)

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
