"""The pool of blocks that all groups of a hybrid cache take from, and the tree of what can be found.

The order of eviction is vLLM's, as in `block_pool`.  Free blocks that hold nothing findable are taken first, so they
are only counted.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable

from attrs import define, field


class PrefixNode:
    """The tokens of one unit after a given prefix, and by group the blocks whose content ends there."""

    __slots__ = ("blocks", "children", "name", "parent", "pins")

    def __init__(self, name: Hashable, parent: "PrefixNode | None"):
        self.name = name
        self.parent = parent
        self.children: dict[Hashable, PrefixNode] = {}
        self.blocks: dict[int, list[CachedBlock]] = {}
        self.pins = 0  # block tables that end here

    def child(self, name: Hashable) -> "PrefixNode":
        """The child called *name*, which is made if need be."""
        node = self.children.get(name)
        if node is None:
            node = self.children[name] = PrefixNode(name, self)
        return node

    def prune(self) -> None:
        """Remove the node if nothing needs it, and its ancestors likewise."""
        node = self
        while node.parent is not None and not (node.pins or node.children or node.blocks):
            if node.parent.children.get(node.name) is node:
                del node.parent.children[node.name]
            node = node.parent


class CachedBlock:
    """A block of group `group` that can be found at `node`, and how many `users` hold it; without a node, nobody finds
    it any more."""

    __slots__ = ("group", "node", "users")

    def __init__(self, group: int, node: PrefixNode):
        self.group = group
        self.node: PrefixNode | None = node
        self.users = 1
        node.blocks.setdefault(group, []).append(self)

    def forget(self) -> None:
        """Let nobody find the block any more."""
        node, self.node = self.node, None
        if node is None:
            return
        same = node.blocks[self.group]
        same.remove(self)
        if not same:
            del node.blocks[self.group]
            node.prune()


class PrivateBlocks:
    """A run of so many free `blocks` that nobody will look for, at their place in the order of eviction."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: int):
        self.blocks = blocks


@define(eq=False)
class HybridPool:
    """`capacity` blocks, of which `empty` ones are free and hold nothing findable, and `queued` ones are free too.

    Without `unhashed_first`, freed blocks that were never in the cache are queued behind all others.
    """

    capacity: int
    unhashed_first: bool = True
    empty: int = field(init=False)
    queued: int = field(default=0, init=False)
    _queue: "OrderedDict[CachedBlock | PrivateBlocks, None]" = field(factory=OrderedDict, init=False)

    def __attrs_post_init__(self) -> None:
        self.empty = self.capacity

    @property
    def free(self) -> int:
        return self.empty + self.queued

    @property
    def used(self) -> int:
        return self.capacity - self.empty - self.queued

    def take(self, blocks: int) -> None:
        """Take so many free *blocks*, which must be there."""
        if blocks <= self.empty:
            self.empty -= blocks
            return
        blocks, self.empty = blocks - self.empty, 0
        self.queued -= blocks
        assert self.queued >= 0, "blocks were taken that are not free"
        while blocks:
            blocks -= self._evict(blocks)

    def _evict(self, blocks: int) -> int:
        """Evict up to so many *blocks* from the front of the queue; return how many."""
        first = next(iter(self._queue))
        if isinstance(first, CachedBlock):
            del self._queue[first]
            first.forget()
            return 1
        taken = min(blocks, first.blocks)
        first.blocks -= taken
        if not first.blocks:
            del self._queue[first]
        return taken

    def share(self, block: CachedBlock) -> None:
        """Add a user to *block*, which may be free or in use."""
        if not block.users:
            del self._queue[block]
            self.queued -= 1
        block.users += 1

    def release(self, blocks: Iterable[CachedBlock]) -> None:
        """Remove a user from each of *blocks*, and queue those without any in their order."""
        for block in blocks:
            assert block.users > 0, "a block was given back more often than it was taken"
            block.users -= 1
            if not block.users and block.node is None:
                self.release_unhashed(1)
            elif not block.users:
                self._queue[block] = None
                self.queued += 1

    def release_private(self, blocks: int) -> None:
        """Queue so many *blocks* that were in the cache, though nobody else could find them."""
        if blocks:
            self._queue[PrivateBlocks(blocks)] = None
            self.queued += blocks

    def release_unhashed(self, blocks: int) -> None:
        """Give back so many *blocks* that are not in the cache."""
        if self.unhashed_first:
            self.empty += blocks
        else:
            self.release_private(blocks)
