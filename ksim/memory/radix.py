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


class PrefixTree:
    """Which block holds what, as far as it can be found again."""

    __slots__ = ("_holder", "root")

    def __init__(self, blocks: int):
        self.root = Node(None, None)
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
            child = node.children[name] = Node(name, node)
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

    def __iter__(self) -> Iterator[Node]:
        """All nodes that hold blocks."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            if node.blocks:
                yield node
            stack.extend(node.children.values())
