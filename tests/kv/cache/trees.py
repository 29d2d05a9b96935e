"""What is in a radix tree."""

from collections.abc import Iterator

from ksim.kv.cache import N, RadixTree


def nodes(tree: RadixTree[N]) -> Iterator[N]:
    """All nodes of *tree* but its root."""
    stack = list(tree.root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())
