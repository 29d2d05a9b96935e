"""SGLang's radix cache of one engine: prefixes are shared by whole pages, and evicted leaf by leaf.

The rules are those of UnifiedRadixCache (SGLang 0.5.23, srt/mem_cache/unified_radix_cache.py) and of the allocators
beside it.  A node is used when it is looked up for admission or by an order of the queue, and when its tokens are
published.  A request locks the path of the tokens that it shares.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar

from attrs import define, field

from ksim.flow.request import Request
from ksim.kv.cache import BlockTable, PrefixHit, RadixTree, common_tokens
from ksim.kv.cache.evictions import Eviction, EvictionQueue
from ksim.kv.cache.evictions.by_history import lru
from ksim.kv.cache.sglang import LockedNode, SlotPool

__all__ = ["RadixCache"]

#: How much older than a node its parent is, in ticks, once both are looked up.
OLDER = 1e-5


class PageTree(RadixTree[LockedNode]):
    """Nodes by their first `page` tokens."""

    __slots__ = ("page",)

    def __init__(self, root: LockedNode, page: int) -> None:
        super().__init__(root)
        self.page = page

    def key(self, table: BlockTable, position: int) -> Hashable:
        """A key for the page of *table* at *position*, which differs between the children of a node."""
        size, end = table.tokens_per_name, position + self.page
        return (size, *table.content[position // size: -(-end // size)]) if end <= table.named_tokens else table


@define(eq=False)
class RadixCache:
    """A cache of `capacity` pages of `block_tokens` tokens; without `prefix_caching`, no token is ever reused.

    Tokens enter the tree by whole pages when they are published.  Where the tree has them already, the request uses
    those and frees its own.  Only where pages are short are leaves evicted, in the order of `eviction`.
    Keys of an engine with EAGLE cover so many tokens `ahead` of a page: it can be cached and found only with these.
    """

    capacity: int
    block_tokens: int = 1
    prefix_caching: bool = True
    eviction: Eviction = lru
    ahead: int = 0
    pool: SlotPool = field(init=False)
    tree: PageTree = field(init=False)  # its root is always locked
    _leaves: EvictionQueue[LockedNode] = field(init=False)
    _cached: int = field(default=0, init=False)  # pages of the tree
    _tick: int = field(default=0, init=False)

    publishes_computed: ClassVar[bool] = True
    _node: ClassVar[type[LockedNode]] = LockedNode

    def __attrs_post_init__(self) -> None:
        self.pool = SlotPool(self.capacity, self.capacity)
        self.tree = PageTree(self._node(BlockTable(), 0, 0, None, 0), self.block_tokens)
        self.tree.root.locks = 1
        self._leaves = EvictionQueue(self.eviction)

    # What others may ask, which changes nothing.

    def block_table(self, request: Request) -> BlockTable:
        """An empty block table for *request*."""
        # By single tokens, names would be many, and differ by one token at most.
        keyed = request.keyed_ahead(self.block_tokens) if self.ahead and self.block_tokens > 1 else request
        return BlockTable(keyed.chunks, keyed.chunk_tokens, keyed.named)

    def blocks(self, tokens: int) -> int:
        """How many pages *tokens* tokens need."""
        return -(-tokens // self.block_tokens)

    def find_prefix(self, table: BlockTable, num_tokens: int) -> PrefixHit:
        """The longest cached prefix of the first *num_tokens* - 1 tokens, in whole pages.  Changes nothing."""
        if not self.prefix_caching:
            return PrefixHit(0)
        tokens, node = self._match(table, num_tokens - 1)
        return PrefixHit(tokens, (node,) if tokens else ())

    def held_blocks(self, table: BlockTable) -> int:
        """How many pages *table* has."""
        return self.blocks(table.num_slots)

    def free_tokens(self) -> int:
        """Tokens for which there is room without an eviction."""
        return self.pool.empty * self.block_tokens

    def evictable_tokens(self) -> int:
        """Cached tokens that nobody uses."""
        return self.pool.evictable * self.block_tokens

    def cached_tokens(self) -> int:
        """All cached tokens."""
        return self._cached * self.block_tokens

    def _match(self, table: BlockTable, end: int) -> tuple[int, LockedNode]:
        """How many of the first *end* tokens of *table* are in the tree, in whole pages, and the last node of them."""
        node, position, page = self.tree.root, 0, self.block_tokens
        end = (end - self.ahead) // page * page
        while position < end and (child := self.tree.child(node, table, position)):
            agreed = common_tokens(child.source, table, position, min(child.end, end)) // page * page
            if not agreed:
                break
            position, node = position + agreed, child
            if position < child.end:
                break
        return position, node

    # Admission.

    def look_up(self, table: BlockTable, end: int) -> tuple[int, LockedNode]:
        """The longest cached prefix of the first *end* tokens of *table*, and its last node; all of it is used now.

        A node in which the prefix ends is split.
        """
        if not self.prefix_caching or end - self.ahead < self.block_tokens:
            return 0, self.tree.root
        tokens, node = self._match(table, end)
        if tokens < node.end:
            node = self._split(node, tokens)
        self._use_path(node)
        return tokens, node

    def _use_path(self, node: LockedNode) -> None:
        self._tick += 1
        used = float(self._tick)
        while (parent := node.parent) is not None:
            self._use(node, used)
            used, node = used - OLDER, parent

    def lock(self, table: BlockTable, tokens: int, node: LockedNode) -> None:
        """Start the empty *table* with the first *tokens* tokens, which end in *node*."""
        assert table.node is None, "a request that holds tokens was admitted again"
        table.node, table.num_slots, table.published = node, tokens, tokens
        self._lock_path(node)

    def locked(self, node: LockedNode) -> int:
        """How many pages become unavailable to others when *node* and those above it are locked."""
        pages = 0
        while node.locks == 0 and node.parent is not None:
            pages += node.tokens // self.block_tokens
            node = node.parent
        return pages

    # Room.

    def make_room(self, tokens: int) -> bool:
        """Evict leaves until pages for so many *tokens* are empty, or no leaf is left; return whether there are enough.
        """
        if self.free_tokens() < tokens:
            self._evict_to(tokens)
        return self.free_tokens() >= tokens

    def _evict_to(self, tokens: int) -> None:
        while self.free_tokens() < tokens and len(self._leaves):
            self._evict_leaf(self._leaves.pop())

    def _evict_leaf(self, leaf: LockedNode) -> None:
        pages = leaf.tokens // self.block_tokens
        self.pool.evictable -= pages
        self.pool.empty += pages
        self._cached -= pages
        self._queue_leaf(self.tree.remove(leaf))

    def clear(self) -> None:
        """Forget all that no request uses."""
        self.make_room(self.capacity * self.block_tokens)

    def grow(self, table: BlockTable, tokens: int) -> None:
        """Give *table* room for *tokens* tokens in all, from empty pages."""
        missing = self.blocks(tokens) - self.blocks(table.num_slots)
        assert missing <= self.pool.empty, "pages that were empty are gone"
        self.pool.empty -= missing
        table.num_slots = tokens

    def take(self, pages: int) -> None:
        """Take so many empty *pages*, which `assign` gives to tables later."""
        assert pages <= self.pool.empty, "pages that were empty are gone"
        self.pool.empty -= pages

    def assign(self, table: BlockTable, tokens: int) -> None:
        """Give *table* room for *tokens* tokens in all, from pages that were taken."""
        table.num_slots = max(table.num_slots, tokens)

    # Publication, and the end of a request.

    def publish_computed(self, table: BlockTable, tokens: int, prompt: int = 0) -> None:
        """Publish the first *tokens* tokens of *table*, by whole pages, and lock them.

        Where they go beyond its *prompt*, a node ends there, so that the output can be evicted alone.
        """
        if not self.prefix_caching:
            return
        page, ahead = self.block_tokens, self.ahead
        end, known = (tokens - ahead) // page * page, table.published
        if not end:
            return
        node = self._insert(table, end, known)
        table.entered = max(table.entered, end)
        if 0 < (whole := (prompt - ahead) // page * page) < end:
            self._insert(table, whole, whole, counts=False)
        self._lock_path(node)
        self._unlock_path(table.node)
        table.node, table.published = node, end

    def free(self, table: BlockTable, tokens: int = 0, prompt: int = 0) -> None:
        """Release all pages of *table*; of a finished request, the first *tokens* are computed and stay cached."""
        if tokens:
            self.publish_computed(table, tokens, prompt)
        self.pool.empty += self.blocks(table.num_slots) - table.published // self.block_tokens
        self._unlock_path(table.node)
        table.node, table.num_slots, table.published, table.entered = None, 0, 0, 0

    def _insert(self, table: BlockTable, end: int, known: int, counts: bool = True) -> LockedNode:
        """Have the first *end* tokens of *table* in the tree, and return their last node.

        The first *known* of them are there already.  Of the others, pages of *table* are freed where the tree has some.
        """
        node, position, page = self.tree.root, 0, self.block_tokens
        while position < end:
            child = self.tree.child(node, table, position)
            if child is None:
                return self._append(table, position, end, node)
            self._tick += 1
            self._use(child, float(self._tick))
            agreed = common_tokens(child.source, table, position, min(child.end, end)) // page * page
            if position + agreed < child.end:
                child = self._split(child, position + agreed)
            self._free_duplicate(table, child, max(known, position))
            if counts and child.end > table.entered:
                self._hit(child)
            node, position = child, child.end
        return node

    def _free_duplicate(self, table: BlockTable, node: LockedNode, start: int) -> None:
        """Free the pages of *table* from *start* on whose tokens *node* has."""
        self.pool.empty += max(0, node.end - start) // self.block_tokens

    def _append(self, table: BlockTable, start: int, end: int, parent: LockedNode) -> LockedNode:
        self._tick += 1
        self._leaves.discard(parent)
        node = self.tree.append(self._node(table, start, end, parent, self._tick))
        node.hits = 1
        self.pool.evictable += (end - start) // self.block_tokens
        self._cached += (end - start) // self.block_tokens
        return node  # which will be locked at once

    def _split(self, node: LockedNode, position: int) -> LockedNode:
        """Split *node* at *position*; return the first part, which has the same users, hits and age."""
        self._tick += 1
        head = self._node(node.source, node.start, position, node.parent, node.created)
        head.locks, head.hits, head.last_use = node.locks, node.hits, self._tick
        head = self.tree.split(node, head)
        self._tick += 1
        self._use(node, float(self._tick))
        return head

    def _use(self, node: LockedNode, when: float) -> None:
        node.last_use = when
        if not node.locks:
            self._queue_leaf(node)

    def _hit(self, node: LockedNode) -> None:
        node.hits += 1
        if not node.locks:
            self._queue_leaf(node)

    def _lock_path(self, node: LockedNode) -> None:
        while node.parent is not None:
            if node.locks == 0:
                self.pool.evictable -= node.tokens // self.block_tokens
                self._leaves.discard(node)
            node.locks += 1
            node = node.parent

    def _unlock_path(self, node: LockedNode | None) -> None:
        while node is not None and node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.pool.evictable += node.tokens // self.block_tokens
                self._queue_leaf(node)
            node = node.parent

    def _queue_leaf(self, node: LockedNode) -> None:
        """Queue *node* for eviction, by what is known of it now, if it is an unlocked leaf."""
        self._leaves.discard(node)
        if node.locks == 0 and not node.children:
            self._leaves.add(node, node)

    def depth_first(self, nodes: Sequence[LockedNode]) -> list[int]:
        """The places of *nodes* by a walk of the tree, those with most of them below first; who is above comes last.

        SGLang's `dfs_weight_order`.
        """
        places: dict[LockedNode, list[int]] = {}
        for place, node in enumerate(nodes):
            places.setdefault(node, []).append(place)
        weights: dict[LockedNode, int] = {}
        for node, places_here in places.items():
            above: LockedNode | None = node
            while above is not None:
                weights[above] = weights.get(above, 0) + len(places_here)
                above = above.parent
        return list(self._walk(self.tree.root, places, weights))

    def _walk(self, root: LockedNode, places: dict[LockedNode, list[int]],
              weights: dict[LockedNode, int]) -> Iterator[int]:
        stack = [(root, False)]
        while stack:
            node, done = stack.pop()
            if done:
                yield from places.get(node, ())
                continue
            stack.append((node, True))
            heavy = sorted((child for child in node.children.values() if child in weights),
                           key=lambda child: -weights[child])
            stack += [(child, False) for child in reversed(heavy)]
