"""A trie of cached blocks that tells what enters and leaves it, as vLLM's KV events do."""

from collections.abc import Hashable

from ksim.flow.block_keys import BlockKeys
from ksim.kv_cache.block_trie import BlockNode, BlockTrie, TrackedNode
from ksim.kv_cache.cache import BlockTable

__all__ = ["TellingTrie"]

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

    def __init__(self, blocks: int, keys: BlockKeys, tracked: bool = False):
        super().__init__(blocks, _KeyedTracked if tracked else _Keyed)
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
        node = self._nodes[block]
        super().evict(block)
        if node is not None and not node.blocks and node.key != _PRIVATE:  # type: ignore[attr-defined]
            self.tells.append(~node.key)  # type: ignore[attr-defined]
