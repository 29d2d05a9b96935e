"""A radix tree of cached prefixes: a node is one full block's content, a path one prefix."""

from collections.abc import Hashable, Iterable, Iterator


class Node:
    """One block's worth of tokens after a given prefix, and the blocks that hold its keys and values.

    Requests that compute equal tokens at the same time each fill a block of
    their own, so a node may have several; a hit takes the one that came first.
    """

    __slots__ = ("blocks", "children", "name", "parent")

    def __init__(self, name: Hashable, parent: "Node | None"):
        self.name = name
        self.parent = parent
        self.children: dict[Hashable, Node] = {}
        self.blocks: list[int] = []


class TrackedNode(Node):
    """A node with a past, for evictions that look at it; times are in ticks of the cache."""

    __slots__ = ("created", "depth", "hits", "last_use")

    def __init__(self, name: Hashable, parent: "Node | None"):
        super().__init__(name, parent)
        self.depth = 0
        self.hits = 0
        self.created = 0
        self.last_use = 0

    def touch(self, tick: int, depth: int, fresh: bool) -> None:
        """Note a use at *tick* of a node that ends *depth* tokens from the beginning; a *fresh* one has no past."""
        if fresh:
            self.created, self.hits = tick, 0
        self.last_use = tick
        self.depth = depth


class PrefixTree:
    """Which block holds what, as far as it can be found again."""

    __slots__ = ("_holder", "root")

    def __init__(self, blocks: int, kind: type[Node] = Node):
        self.root = kind(None, None)
        self._holder: list[Node | None] = [None] * blocks

    def match(self, names: Iterable[Hashable]) -> list[Node]:
        """The nodes of the longest cached prefix of *names*.  Changes nothing."""
        path, node = [], self.root
        for name in names:
            child = node.children.get(name)
            if child is None or not child.blocks:
                break
            path.append(child)
            node = child
        return path

    def enter(self, node: Node, name: Hashable, block: int) -> Node:
        """Make *block* findable as *name* after the prefix that *node* ends; return its node."""
        child = node.children.get(name)
        if child is None:
            child = node.children[name] = type(node)(name, node)
        child.blocks.append(block)
        self._holder[block] = child
        return child

    def forget(self, block: int) -> None:
        """*block* is about to be overwritten: drop it, and nodes that then hold and lead to nothing."""
        node = self._holder[block]
        if node is None:
            return
        self._holder[block] = None
        node.blocks.remove(block)
        while node.parent is not None and not node.blocks and not node.children:
            del node.parent.children[node.name]
            node = node.parent

    def holds(self, block: int) -> bool:
        """Whether *block* can be found again."""
        return self._holder[block] is not None

    def node(self, block: int) -> Node:
        """The node of *block*, which can be found again."""
        node = self._holder[block]
        assert node is not None, "a block that holds nothing has no node"
        return node

    def __iter__(self) -> Iterator[Node]:
        """All nodes that hold blocks."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            if node.blocks:
                yield node
            stack.extend(node.children.values())
