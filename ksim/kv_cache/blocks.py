"""A pool of equal KV blocks: who uses them, and in which order free ones are taken again.

The order is vLLM's (v1/core/block_pool.py, 0.33): blocks are taken from the
front of a queue; of the blocks a request gives back, its last first, those that
hold nothing reusable go to the front and the others to the back.  So what was
used least recently is lost first, and a prompt's tail before its head.
"""

from collections import OrderedDict
from collections.abc import Iterable

from attrs import define, field


@define
class BlockPool:
    """Blocks 0 to `capacity` - 1; `users` counts who holds each."""

    capacity: int
    users: list[int] = field(init=False)
    _free: "OrderedDict[int, None]" = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.users = [0] * self.capacity
        self._free = OrderedDict.fromkeys(range(self.capacity))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.capacity - len(self._free)

    def take(self) -> int:
        """Take the block at the front; there must be one."""
        block, _ = self._free.popitem(last=False)
        self.users[block] = 1
        return block

    def share(self, block: int) -> None:
        """Use *block*, which others may be using too."""
        if self.users[block] == 0:
            del self._free[block]
        self.users[block] += 1

    def leave(self, block: int) -> bool:
        """Stop using *block*; return whether it is now nobody's, and so must be put in the queue."""
        assert self.users[block] > 0, "a block was given back more often than it was taken"
        self.users[block] -= 1
        return self.users[block] == 0

    def to_back(self, blocks: Iterable[int]) -> None:
        """Queue *blocks* behind all others, in their order."""
        for block in blocks:
            self._free[block] = None

    def to_front(self, blocks: list[int]) -> None:
        """Queue *blocks* before all others, the first of them foremost."""
        for block in reversed(blocks):
            self._free[block] = None
            self._free.move_to_end(block, last=False)
