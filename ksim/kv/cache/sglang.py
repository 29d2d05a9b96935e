"""SGLang's KV cache of one engine: prefixes are shared to the token, and evicted leaf by leaf of a radix tree.

The rules are those of RadixCache (python/sglang/srt/mem_cache/radix_cache.py) with page_size 1.
"""

from typing import ClassVar

from attrs import define, field

from ksim.flow.request import Request
from ksim.kv.cache import BlockTable, PrefixHit, RadixNode, RadixTree, common_tokens
from ksim.kv.cache.evictions import Eviction, EvictionQueue
from ksim.kv.cache.evictions.by_history import lru


class LockedNode(RadixNode):
    """A run of tokens that `locks` requests use, with a history for evictions to look at."""

    __slots__ = ("created", "hits", "last_use", "locks")

    last_use: float

    def __init__(self, source: BlockTable, start: int, end: int, parent: "LockedNode | None", tick: int):
        super().__init__(source, start, end, parent)
        self.locks = self.hits = 0
        self.created = self.last_use = tick

    @property
    def depth(self) -> int:
        """Tokens from the beginning of the prompt to its end."""
        return self.end


@define
class SlotPool:
    """Slots for `capacity` tokens: some are `empty`, some hold cached tokens without users, the others are in use.

    Those without users are `evictable`.
    """

    capacity: int
    empty: int
    evictable: int = 0

    @property
    def free(self) -> int:
        return self.empty + self.evictable

    @property
    def used(self) -> int:
        return self.capacity - self.free


@define
class SglangCache:
    """A cache of `capacity` tokens; without `prefix_caching`, no token is ever reused.

    Tokens enter the tree when a chunk of a prompt has been computed, and when
    the request has finished.  Where the tree has equal tokens already, the
    request uses those and frees its own.  The nodes that a request uses are
    locked, up to the root.  Of the other nodes, leaves are evicted first, in the
    order of `eviction`.
    """

    capacity: int
    prefix_caching: bool = True
    eviction: Eviction = lru
    pool: SlotPool = field(init=False)
    tree: RadixTree[LockedNode] = field(init=False)  # its root is always locked
    _leaves: EvictionQueue[LockedNode] = field(init=False)
    _tick: int = field(default=0, init=False)

    block_tokens: ClassVar[int] = 1
    publishes_computed: ClassVar[bool] = True
    node_class: ClassVar[type[LockedNode]] = LockedNode

    def __attrs_post_init__(self) -> None:
        self.pool = SlotPool(self.capacity, self.capacity)
        self.tree = RadixTree(self.node_class(BlockTable(), 0, 0, None, 0))
        self.tree.root.locks = 1
        self._leaves = EvictionQueue(self.eviction)

    def block_table(self, request: Request) -> BlockTable:
        """An empty block table for *request*."""
        return BlockTable(request.chunks, request.chunk_tokens, request.named)

    def blocks(self, tokens: int) -> int:
        """How many blocks *tokens* tokens need: a block holds one token."""
        return tokens

    def find_prefix(self, table: BlockTable, num_tokens: int) -> PrefixHit:
        """The longest cached prefix of the first *num_tokens* - 1 tokens.  Changes nothing, not even `last_use`."""
        if not self.prefix_caching:
            return PrefixHit(0)
        tokens, node = self.tree.match(table, num_tokens - 1)
        return PrefixHit(tokens, (node,) if tokens else ())

    def can_allocate(self, hit: PrefixHit, tokens: int, spare: int = 0) -> bool:
        """Whether there is room for *tokens* tokens that begin with *hit*, with *spare* slots left free."""
        return tokens - hit.tokens + _evictable(hit) + spare <= self.pool.free

    can_admit = can_allocate

    def attach_prefix(self, table: BlockTable, hit: PrefixHit) -> None:
        """Start the empty *table* with the slots of *hit*; a node in which the hit ends is split."""
        assert table.node is None, "a request that holds tokens was admitted again"
        self._tick += 1
        node = hit.nodes[-1] if hit.nodes else self.tree.root
        if hit.tokens < node.end:
            node = self._split(node, hit.tokens)
        table.node, table.num_slots, table.published = node, hit.tokens, hit.tokens
        while node.parent is not None:
            self._lock(node)
            node.last_use = self._tick
            node.hits += 1
            node = node.parent

    def allocate(self, table: BlockTable, tokens: int) -> bool:
        """Give *table* room for *tokens* tokens in all, evicting leaves if need be; all or nothing."""
        missing = tokens - table.num_slots
        if missing <= 0:
            return True
        if not self.reserve(missing):
            return False
        table.num_slots = tokens
        return True

    def reserve(self, blocks: int) -> bool:
        """Take *blocks* slots, which `assign` gives to tables later; all or nothing."""
        if blocks > self.pool.free:
            return False
        while self.pool.empty < blocks:
            self._evict()
        self.pool.empty -= blocks
        return True

    def assign(self, table: BlockTable, tokens: int) -> None:
        """Give *table* room for *tokens* tokens in all, from reserved slots."""
        table.num_slots = max(table.num_slots, tokens)

    def publish(self, table: BlockTable, tokens: int) -> None:
        """Do nothing: tokens are published when they are computed."""

    def is_private(self, table: BlockTable) -> bool:
        """Return False: others can find every chunk that is computed."""
        return False

    def publish_computed(self, table: BlockTable, tokens: int) -> None:
        """Publish the first *tokens* tokens of *table*; where the tree has them already, *table* uses those."""
        if not self.prefix_caching or tokens <= table.published:
            return
        self._tick += 1
        node = table.node
        while table.published < tokens:
            node = self._next_node(node, table, tokens)
            self._lock(node)
            table.published = node.end
        table.node = node
        while node.parent is not None:
            node.last_use = self._tick
            node = node.parent

    def free(self, table: BlockTable, tokens: int = 0) -> None:
        """Release all slots of *table*; a finished request has computed *tokens* tokens."""
        self.publish_computed(table, tokens)
        self.pool.empty, node = self.pool.empty + table.num_slots - table.published, table.node
        while node is not None and node.parent is not None:
            self._unlock(node)
            node = node.parent
        table.node, table.num_slots, table.published = None, 0, 0

    def held_blocks(self, table: BlockTable) -> int:
        """How many slots *table* has."""
        return table.num_slots

    def same_block(self, table: BlockTable, other: BlockTable, place: int) -> bool:
        """Whether both tables have the very same slot at *place*: they share the node that holds it."""
        if table is other:
            return place < table.num_slots
        node = self._node_at(table, place)
        return node is not None and node is self._node_at(other, place)

    def _node_at(self, table: BlockTable, place: int) -> LockedNode | None:
        """The node in which *table* has its token at *place*; None if no other request can find that token."""
        if place >= table.published:
            return None
        node = table.node
        while node.start > place:
            node = node.parent
        assert isinstance(node, LockedNode)
        return node

    def invalidate(self, table: BlockTable, place: int) -> None:
        """Do nothing: tokens that were loaded are published when the load has ended well."""

    def clear(self) -> None:
        """Forget all that no request uses."""
        while len(self._leaves):
            self._evict()

    def steps_until_change(self, table: BlockTable, tokens: int, async_scheduling: bool) -> int:
        """How many decode steps after the first *tokens* tokens need no slot."""
        return table.num_slots - tokens

    def _next_node(self, node: LockedNode, table: BlockTable, end: int) -> LockedNode:
        """The child of *node* that has the next tokens of *table*, at most up to *end*.

        A child that agrees only at first is split.  If none agrees, one is added.
        """
        position = node.end
        child = self.tree.child(node, table, position)
        if child is None:
            self.pool.evictable += end - position  # until it is locked
            return self.tree.append(self.node_class(table, position, end, node, self._tick))
        agreed = common_tokens(child.source, table, position, min(child.end, end))
        self.pool.empty += agreed
        return child if position + agreed == child.end else self._split(child, position + agreed)

    def _split(self, node: LockedNode, position: int) -> LockedNode:
        """Split *node* at *position*; return the first part, which has the same users and hits."""
        head = self.node_class(node.source, node.start, position, node.parent, self._tick)
        head.locks, head.hits = node.locks, node.hits
        return self.tree.split(node, head)

    def _lock(self, node: LockedNode) -> None:
        if node.locks == 0:
            self.pool.evictable -= node.tokens
            self._leaves.discard(node)
        node.locks += 1

    def _unlock(self, node: LockedNode) -> None:
        node.locks -= 1
        if node.locks == 0:
            self.pool.evictable += node.tokens
            self._queue_leaf(node)

    def _queue_leaf(self, node: LockedNode) -> None:
        """Queue *node* for eviction if it is an unlocked leaf."""
        if node.locks == 0 and not node.children:
            self._leaves.add(node, node)

    def _evict(self) -> None:
        leaf = self._leaves.pop()
        assert not leaf.locks, "a locked node cannot be evicted"
        self.pool.evictable -= leaf.tokens
        self.pool.empty += leaf.tokens
        self._queue_leaf(self.tree.remove(leaf))


def _evictable(hit: PrefixHit) -> int:
    """How many tokens of *hit* have no users."""
    if not hit.nodes:
        return 0
    node = hit.nodes[-1]
    while node.locks == 0:
        node = node.parent
    return int(hit.tokens - min(hit.tokens, node.end))
