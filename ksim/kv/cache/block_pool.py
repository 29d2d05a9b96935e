"""Pools of equal KV blocks: reference counts, and the order in which free blocks are reused.

The order is vLLM's (v1/core/block_pool.py, 0.33).  Blocks are taken from the
front of a queue.  A freed request returns its blocks last first: those without
reusable content go to the front, the others to the back.  So the least recently
used block is evicted first, and the tail of a prompt before its head.

The order in which an eviction's key function gives up what nobody uses.

A trie of cached blocks: a node stands for the content of one full block, a path for a prefix.

A trie of cached blocks that tells what enters and leaves it, as vLLM's KV events do.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import count
from typing import Any, Generic, TypeVar

from attrs import define, field
from sortedcontainers import SortedDict

from ksim.flow.request import BlockKeys
from ksim.foundation.errors import ConfigError
from ksim.kv.cache import BlockTable
from ksim.kv.cache.evictions import Eviction, Tracked

__all__ = ["TellingTrie", "EvictionQueue", "BlockPool", "EvictionPool", "BlockNode", "TrackedNode", "BlockTrie"]


T = TypeVar("T")


@define(eq=False)
class EvictionQueue(Generic[T]):
    """A priority queue of items by the key of their node, smallest first; equal keys in order of arrival.

    Raises ConfigError for a key function that fails, or whose keys cannot be compared.
    """

    eviction: Eviction
    _queue: "SortedDict[Any, T]" = field(factory=SortedDict)
    _keys: dict[T, tuple[Any, int]] = field(factory=dict)
    _arrivals: "count[int]" = field(factory=count)

    def add(self, item: T, node: Tracked) -> None:
        """Queue *item* by the key that the eviction computes from *node*."""
        try:
            key = self.eviction(node)
            entry = self._keys[item] = key, next(self._arrivals)
            self._queue[entry] = item
        except Exception as error:  # show users whatever their function raised
            raise ConfigError(self._name(), f"{type(error).__name__}: {error}") from error
        if key != key:  # noqa: PLR0124 - only NaN differs from itself
            raise ConfigError(self._name(), "a key is not a number")

    def discard(self, item: T) -> None:
        """Remove *item* if it is queued."""
        if entry := self._keys.pop(item, None):
            del self._queue[entry]

    def pop(self) -> T:
        """Remove and return the first item; the queue must not be empty."""
        item: T = self._queue.popitem(0)[1]
        del self._keys[item]
        return item

    def __contains__(self, item: object) -> bool:
        return item in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def _name(self) -> str:
        return f"eviction {getattr(self.eviction, '__name__', type(self.eviction).__name__)}"


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
    """Which block holds which content, for all blocks that can be reused.

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
