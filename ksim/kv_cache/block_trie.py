"""A trie of cached blocks: a node stands for the content of one full block, a path for a prefix."""

from collections.abc import Hashable, Iterable, Iterator


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

    def __init__(self, blocks: int, kind: type[BlockNode] = BlockNode):
        self.root = kind(None, None)
        self.lost = False
        self._nodes: list[BlockNode | None] = [None] * blocks

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
        node = self._nodes[block]
        if node is None:
            return
        self._nodes[block] = None
        node.blocks.remove(block)
        while node.parent is not None and not node.blocks and not node.children:
            if node.parent.children.get(node.name) is node:  # it may be removed already, and have come back since
                del node.parent.children[node.name]
            node = node.parent

    def holds(self, block: int) -> bool:
        """Whether the content of *block* can be reused."""
        return self._nodes[block] is not None

    def node(self, block: int) -> BlockNode:
        """The node of *block*, whose content can be reused."""
        node = self._nodes[block]
        assert node is not None, "a block without reusable content has no node"
        return node

    def __iter__(self) -> Iterator[BlockNode]:
        """All nodes that have blocks."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            if node.blocks:
                yield node
            stack.extend(node.children.values())
