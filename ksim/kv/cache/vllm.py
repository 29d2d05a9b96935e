"""vLLM's KV cache of one engine, counted in runs of blocks: who holds how many, and what others can reuse.

It decides as BlockCache does, and reuses free blocks in the same order.  Its cost grows with the requests and the runs
that they share, not with the number of blocks.  Only the number of free blocks and what is evicted with them can be
observed, not which blocks they are.  So blocks without reusable content are just counted, and those that hold one run
of tokens are one extent.
"""

from typing import ClassVar

from attrs import define, field

from ksim.flow.request import Request
from ksim.kv.cache import BlockTable, PrefixHit, RadixNode, RadixTree, common_tokens


class Extent:
    """The blocks that hold the tokens of `node` for its `users`; an extent without users is in the free queue.

    The queue is a linked list.  Of an extent, the last block is taken first.
    What is in an extent that is not `hashed` cannot be found; it leaves its node with its last user.
    """

    __slots__ = ("hashed", "next", "node", "previous", "users")

    def __init__(self, node: "ExtentNode", users: set[BlockTable], hashed: bool = True):
        self.node = node
        self.users = users
        self.hashed = hashed
        self.previous = self.next = self

    def insert_after(self, other: "Extent") -> None:
        """Queue this extent right behind *other*."""
        self.previous, self.next = other, other.next
        self.next.previous = other.next = self

    def unlink(self) -> None:
        """Leave the queue."""
        self.previous.next, self.next.previous = self.next, self.previous
        del self.previous, self.next  # an extent in use must not keep its former neighbours alive


class ExtentNode(RadixNode):
    """A run of tokens and the `extents` that hold it, in order of insertion.

    Requests that compute equal tokens at the same time fill blocks of their
    own.  A hit takes the first extent.  Extents that are not hashed come after all others.
    """

    __slots__ = ("extents",)

    def __init__(self, source: BlockTable, start: int, end: int, parent: "ExtentNode | None"):
        super().__init__(source, start, end, parent)
        self.extents: list[Extent] = []

    def extent_of(self, user: BlockTable) -> Extent:
        """The extent that *user* uses."""
        extents = self.extents
        return extents[0] if len(extents) == 1 else next(extent for extent in extents if user in extent.users)

    @property
    def findable(self) -> bool:
        """Whether a request can find its tokens here."""
        return bool(self.extents) and self.extents[0].hashed

    def add(self, extent: Extent) -> None:
        """Add a hashed *extent*."""
        place = len(self.extents)
        while place and not self.extents[place - 1].hashed:
            place -= 1
        self.extents.insert(place, extent)

    def lose(self, extent: Extent) -> None:
        """Hide *extent*, one of this node's own that is in use, from all requests."""
        self.extents.remove(extent)
        self.extents.append(extent)
        extent.hashed = False

    def head(self, end: int) -> "ExtentNode":
        """A node for the tokens up to *end*: its extents have the same users, or are queued right behind these."""
        head = ExtentNode(self.source, self.start, end, self.parent)
        for extent in self.extents:
            first_blocks = Extent(head, set(extent.users), extent.hashed)
            head.extents.append(first_blocks)
            if not extent.users:
                first_blocks.insert_after(extent)
        return head


class ExtentTree(RadixTree[ExtentNode]):
    """The nodes of a cache; `lost` says whether what is in blocks in use was ever lost."""

    __slots__ = ("lost",)

    def __init__(self, root: ExtentNode) -> None:
        super().__init__(root)
        self.lost = False

    def findable(self, end: int, node: ExtentNode) -> tuple[int, ExtentNode]:
        """The tokens that can be found of the match that ends at *end*, in *node*, and their last node."""
        last = node
        while node.parent is not None:
            if not node.findable:
                end, last = node.start, node.parent
            node = node.parent
        return end, last

    def node_at(self, table: BlockTable, position: int) -> ExtentNode | None:
        """The node in which *table* has its token at *position*; None if no other table can have that token."""
        node: ExtentNode | None = table.node
        if node is None or position >= node.end:
            return None
        while node.start > position:
            assert node.parent is not None, "the root has no tokens"
            node = node.parent
        return node

    def lose(self, table: BlockTable, position: int) -> None:
        """Hide the tokens of *table* from *position* on from all requests."""
        node: ExtentNode = table.node
        while node.end > position:
            if node.start < position:
                self.split(node, node.head(position))
            node.lose(node.extent_of(table))
            self.lost = True
            assert node.parent is not None, "the root has no tokens"
            node = node.parent

    def prune(self, node: ExtentNode) -> None:
        """Remove *node* if it has no blocks and no children, and so on towards the root."""
        while node.parent is not None and not node.extents and not node.children:
            node = self.remove(node)


@define(eq=False)
class ExtentPool:
    """A pool of `capacity` blocks, of which `free` can be taken.

    Of the free blocks, `unhashed` ones have no reusable content and are taken
    first.  Then come those of the queued extents.  Of these, `to_evict` are
    taken already while their content is still in the tree.
    """

    capacity: int
    free: int = field(init=False)
    unhashed: int = field(init=False)
    to_evict: int = field(default=0, init=False)
    _sentinel: Extent = field(init=False)  # before the first extent of the queue and after the last

    def __attrs_post_init__(self) -> None:
        self.free = self.unhashed = self.capacity
        self._sentinel = Extent(ExtentNode(BlockTable(), 0, 0, None), set())

    @property
    def used(self) -> int:
        return self.capacity - self.free

    @property
    def first(self) -> Extent:
        """The extent at the front of the queue, which must not be empty."""
        return self._sentinel.next

    def take(self, blocks: int) -> bool:
        """Take *blocks* from the front; all or nothing."""
        if blocks > self.free:
            return False
        self.free -= blocks
        self.unhashed -= blocks
        if self.unhashed < 0:
            self.to_evict -= self.unhashed
            self.unhashed = 0
        return True

    def to_front(self, blocks: int) -> None:
        """Give back *blocks* without reusable content, to be taken next; nothing may be left `to_evict`."""
        self.free += blocks
        self.unhashed += blocks

    def to_back(self, extent: Extent, blocks: int) -> None:
        """Queue *extent*, which has no users left, with its *blocks*."""
        self.free += blocks
        extent.insert_after(self._sentinel.previous)

    def reuse(self, extent: Extent, blocks: int) -> None:
        """Take *extent* with its *blocks* out of the queue, for the tokens that they hold."""
        self.free -= blocks
        extent.unlink()


@define(eq=False)
class VllmCache:
    """A cache of `capacity` blocks of `block_tokens` tokens; without `prefix_caching`, no block is ever reused.

    Positions in the tree count tokens, and are multiples of `block_tokens`.
    Tokens that only their own request could find enter the tree when it is freed.

    With `unhashed_first`, freed blocks without reusable content are taken before
    all others.  Older releases of vLLM queue them at the back like the rest.
    """

    capacity: int
    block_tokens: int
    prefix_caching: bool = True
    unhashed_first: bool = True
    pool: ExtentPool = field(init=False)
    tree: ExtentTree = field(init=False)

    publishes_computed: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        self.pool = ExtentPool(self.capacity)
        self.tree = ExtentTree(ExtentNode(BlockTable(), 0, 0, None))

    def block_table(self, request: Request) -> BlockTable:
        """An empty block table for *request*, whose names stand for whole blocks."""
        if not request.chunks:
            return BlockTable()
        size = self.block_tokens
        if request.chunk_tokens % size:
            return BlockTable(request.content(size), size)
        return BlockTable(request.chunks, request.chunk_tokens, request.named // size * size)

    def blocks(self, tokens: int) -> int:
        """How many blocks *tokens* tokens need."""
        return -(-tokens // self.block_tokens)

    def find_prefix(self, table: BlockTable, num_tokens: int) -> PrefixHit:
        """The longest prefix of full cached blocks among the first *num_tokens* - 1 tokens.

        Only bookkeeping that was put off is done; what can be found stays the same.
        """
        if not self.prefix_caching:
            return PrefixHit(0)
        self._evict()
        if table.node is not None:
            self._insert(table, table.published)
        end, node = self.tree.match(table, (num_tokens - 1) // self.block_tokens * self.block_tokens)
        if self.tree.lost:
            end, node = self.tree.findable(end, node)
        return PrefixHit(end, (node,), self._evictable(node, end)) if end else PrefixHit(0)

    def can_allocate(self, hit: PrefixHit, tokens: int, spare: int = 0) -> bool:
        """Whether there is room for *tokens* tokens that begin with *hit*, with *spare* blocks left free."""
        return self.blocks(tokens - hit.tokens) + hit.evictable + spare <= self.pool.free

    can_admit = can_allocate

    def attach_prefix(self, table: BlockTable, hit: PrefixHit) -> None:
        """Start the empty *table* with the blocks of *hit*; a node in which the hit ends is split."""
        assert table.node is None, "a request that holds blocks was admitted again"
        assert not table.content or table.tokens_per_name % self.block_tokens == 0, "names are not of whole blocks"
        node = hit.nodes[0] if hit.nodes else self.tree.root
        if hit.tokens < node.end:
            node = self._split(node, hit.tokens)
        table.node, table.num_slots, table.published = node, hit.tokens, hit.tokens
        while node.parent is not None:
            extent = node.extents[0]
            if not extent.users:
                self.pool.reuse(extent, node.tokens // self.block_tokens)
            extent.users.add(table)
            node = node.parent

    def allocate(self, table: BlockTable, tokens: int) -> bool:
        """Give *table* room for *tokens* tokens in all, from the free blocks; all or nothing."""
        missing = tokens - table.num_slots
        if missing <= 0:
            return True
        blocks = -(-missing // self.block_tokens)
        if not self.pool.take(blocks):
            return False
        table.num_slots += blocks * self.block_tokens
        return True

    def reserve(self, blocks: int) -> bool:
        """Take *blocks* free blocks, which `assign` gives to tables later; all or nothing."""
        return self.pool.take(blocks)

    def assign(self, table: BlockTable, tokens: int) -> None:
        """Give *table* room for *tokens* tokens in all, from reserved blocks."""
        table.num_slots = max(table.num_slots, self.blocks(tokens) * self.block_tokens)

    def is_private(self, table: BlockTable) -> bool:
        """Whether no other request can find what *table* publishes from now on: all named tokens are published."""
        return table.published >= table.named_tokens or not self.prefix_caching

    def publish(self, table: BlockTable, tokens: int) -> None:
        """Publish the full blocks among the first *tokens* tokens of *table*."""
        full = tokens - tokens % self.block_tokens
        if full <= table.published or not self.prefix_caching:
            return
        assert full <= table.num_slots, "a request without blocks cannot share them"
        if table.published < table.named_tokens:
            self._insert(table, min(full, table.named_tokens))
        table.published = full

    def publish_computed(self, table: BlockTable, tokens: int) -> None:
        """Do nothing: blocks are published when they are scheduled."""

    def free(self, table: BlockTable, tokens: int = 0) -> None:
        """Release all blocks of *table*, last block first; a finished request has computed *tokens* tokens."""
        if tokens:
            self.publish(table, tokens)
        if table.node is None:
            return
        self._evict()
        self._insert(table, table.published)
        self._free_unhashed(table.num_slots - table.published)
        node = table.node
        while node.parent is not None:
            extent, parent = node.extent_of(table), node.parent
            extent.users.remove(table)
            if not extent.users:
                self._give_back(extent)
            node = parent
        table.node, table.num_slots, table.published = None, 0, 0

    def held_blocks(self, table: BlockTable) -> int:
        """How many blocks *table* has."""
        return table.num_slots // self.block_tokens

    def same_block(self, table: BlockTable, other: BlockTable, place: int) -> bool:
        """Whether both tables have the very same block at *place*."""
        if table is other:
            return place < self.held_blocks(table)
        node = self.tree.node_at(table, place * self.block_tokens)
        return node is not None and other in node.extent_of(table).users

    def invalidate(self, table: BlockTable, place: int) -> None:
        """Forget what is in the blocks of *table* from *place* on."""
        self._evict()
        self._insert(table, table.published)
        self.tree.lose(table, place * self.block_tokens)

    def clear(self) -> None:
        """Forget all that no request uses: have all free blocks taken once, and given back."""
        table = BlockTable()
        self.attach_prefix(table, PrefixHit(0))
        self.allocate(table, self.pool.free * self.block_tokens)
        self.free(table)

    def steps_until_change(self, table: BlockTable, tokens: int, async_scheduling: bool) -> int:
        """How many decode steps after the first *tokens* tokens need no block and fill none."""
        steps = table.num_slots - tokens
        if self.prefix_caching:  # a block is published when its last token is known
            until_full = table.published + self.block_tokens - tokens - 1 + async_scheduling
            steps = min(steps, max(until_full, 0))
        return steps

    def _insert(self, table: BlockTable, end: int) -> None:
        """Record in the tree that *table* holds its tokens up to *end*."""
        node: ExtentNode = table.node
        while node.end < end:
            child = self.tree.child(node, table, node.end)
            node = self._append(node, table, end) if child is None else self._add_extent(child, table, end)
        table.node = node

    def _append(self, node: ExtentNode, table: BlockTable, end: int) -> ExtentNode:
        """Extend *node* by the tokens of *table* up to *end* if only *table* uses it; otherwise give it a child."""
        if len(node.extents) == 1 and len(node.extents[0].users) == 1 and not node.children and node.extents[0].hashed:
            node.source, node.end = table, end
            return node
        child = self.tree.append(ExtentNode(table, node.end, end, node))
        child.extents.append(Extent(child, {table}))
        return child

    def _add_extent(self, node: ExtentNode, table: BlockTable, end: int) -> ExtentNode:
        """Give *node* the extent in which *table* computed the same tokens, as far as they agree up to *end*."""
        agreed = node.start + common_tokens(node.source, table, node.start, min(node.end, end))
        if agreed < node.end:
            node = self._split(node, agreed)
        node.add(Extent(node, {table}))
        return node

    def _split(self, node: ExtentNode, position: int) -> ExtentNode:
        """Split *node* at *position*; return the first part."""
        return self.tree.split(node, node.head(position))

    def _evictable(self, node: ExtentNode, end: int) -> int:
        """How many blocks of the prefix up to *end*, which is in *node*, have no users."""
        tokens = 0
        while node.parent is not None:
            if not node.extents[0].users:
                tokens += end - node.start
            node, end = node.parent, node.start
        return tokens // self.block_tokens

    def _give_back(self, extent: Extent) -> None:
        """Queue *extent*, which has no users left; if nobody can find it, it leaves the tree."""
        node = extent.node
        if extent.hashed:
            self.pool.to_back(extent, node.tokens // self.block_tokens)
            return
        self._free_unhashed(node.tokens)
        node.extents.remove(extent)
        self.tree.prune(node)

    def _free_unhashed(self, tokens: int) -> None:
        """Give back the blocks of *tokens* tokens that were not published."""
        if not tokens:
            return
        blocks = tokens // self.block_tokens
        if self.unhashed_first or not self.prefix_caching:
            self.pool.to_front(blocks)
        else:  # a node that nobody can find keeps their place in the queue
            node = self.tree.append(ExtentNode(BlockTable(), 0, tokens, self.tree.root))
            node.extents.append(Extent(node, set()))
            self.pool.to_back(node.extents[0], blocks)

    def _evict(self) -> None:
        """Remove from the tree what was in the blocks that have been taken."""
        pool = self.pool
        tokens = pool.to_evict * self.block_tokens
        pool.to_evict = 0
        while tokens:
            extent = pool.first
            node = extent.node
            lost = min(node.tokens, tokens)
            shared = len(node.extents) > 1 or node.children
            if lost < node.tokens and shared:
                self._split(node, node.end - lost)
            if shared:
                node.extents.remove(extent)
                extent.unlink()
            elif lost < node.tokens:
                node.end -= lost
            else:
                self.tree.prune(self.tree.remove(node))
                extent.unlink()
                node.extents.clear()  # breaks the reference cycle: the garbage collector is off while a run goes on
            tokens -= lost
