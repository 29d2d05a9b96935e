"""A pool of KV blocks whose free ones are taken in the order of an eviction."""

from collections.abc import Callable, Iterable

from attrs import define, field

from ksim.kv_cache.blocks import BlockPool
from ksim.kv_cache.evictions import Eviction, Tracked
from ksim.kv_cache.order import EvictionOrder


@define
class RankedPool(BlockPool):
    """Blocks that hold nothing reusable go first, as in any pool; the others as `eviction` says of their `node`."""

    eviction: Eviction
    node: Callable[[int], Tracked]
    _order: EvictionOrder[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._order = EvictionOrder(self.eviction)

    @property
    def free(self) -> int:
        return len(self._free) + len(self._order)

    @property
    def used(self) -> int:
        return self.capacity - self.free

    def take(self) -> int:
        if self._free:
            return super().take()
        block = self._order.pop()
        self.users[block] = 1
        return block

    def share(self, block: int) -> None:
        if block in self._order:
            self._order.discard(block)
            self.users[block] = 1
        else:
            super().share(block)

    def to_back(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._order.add(block, self.node(block))
