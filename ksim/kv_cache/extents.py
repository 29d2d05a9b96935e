"""Extents: the blocks that hold one run of tokens, and the order in which free ones are reused.

The order is vLLM's (see block_pool.py).  Only the number of free blocks and
what is evicted with them can be observed, not which blocks they are.  So blocks
without reusable content are just counted, and those that hold one run of tokens
are one extent.
"""

from attrs import define, field

from ksim.kv_cache.cache import BlockTable
from ksim.kv_cache.radix_tree import RadixNode, RadixTree


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
        """Let nobody find *extent*, one of its own that is in use."""
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
        """As much of the match that ends at *end*, in *node*, as can be found, and the last node of that."""
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
        """Let nobody find what *table* has from *position* on."""
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
