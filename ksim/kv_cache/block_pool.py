"""Pools of equal KV blocks: reference counts, and the order in which free blocks are reused.

The order is vLLM's (v1/core/block_pool.py, 0.33).  Blocks are taken from the
front of a queue.  A freed request returns its blocks last first: those without
reusable content go to the front, the others to the back.  So the least recently
used block is evicted first, and the tail of a prompt before its head.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from attrs import define, field

from ksim.kv_cache.eviction_queue import EvictionQueue
from ksim.kv_cache.evictions import Eviction, Tracked


@define
class BlockPool:
    """Blocks 0 to `capacity` - 1; `ref_counts` says how many requests hold each."""

    capacity: int
    ref_counts: list[int] = field(init=False)
    _free: "OrderedDict[int, None]" = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.ref_counts = [0] * self.capacity
        self._free = OrderedDict.fromkeys(range(self.capacity))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.capacity - len(self._free)

    def take(self) -> int:
        """Take the block at the front of the queue, which must not be empty."""
        block, _ = self._free.popitem(last=False)
        self.ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a user to *block*, which may be free or in use."""
        if self.ref_counts[block] == 0:
            del self._free[block]
        self.ref_counts[block] += 1

    def release(self, block: int) -> bool:
        """Remove a user from *block*; return whether it was the last, so that the block must be queued."""
        assert self.ref_counts[block] > 0, "a block was given back more often than it was taken"
        self.ref_counts[block] -= 1
        return self.ref_counts[block] == 0

    def to_back(self, blocks: Iterable[int]) -> None:
        """Queue *blocks* behind all others, in their order."""
        for block in blocks:
            self._free[block] = None

    def to_front(self, blocks: list[int]) -> None:
        """Queue *blocks* before all others, the first of them foremost."""
        for block in reversed(blocks):
            self._free[block] = None
            self._free.move_to_end(block, last=False)


@define
class EvictionPool(BlockPool):
    """A pool that reuses blocks with reusable content in the order of an `eviction`, after all others.

    `node` gives the node of a block, for the eviction to look at.
    """

    eviction: Eviction
    node: Callable[[int], Tracked]
    _evictable: EvictionQueue[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._evictable = EvictionQueue(self.eviction)

    @property
    def free(self) -> int:
        return len(self._free) + len(self._evictable)

    @property
    def used(self) -> int:
        return self.capacity - self.free

    def take(self) -> int:
        if self._free:
            return super().take()
        block = self._evictable.pop()
        self.ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        if block in self._evictable:
            self._evictable.discard(block)
            self.ref_counts[block] = 1
        else:
            super().share(block)

    def to_back(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._evictable.add(block, self.node(block))
