"""A radix tree of cached tokens: a node stands for a run of tokens, a path for a prefix."""

from collections.abc import Hashable
from typing import Generic, Self, TypeVar

from ksim.kv_cache.cache import BlockTable


class RadixNode:
    """The tokens of `source` from position `start` up to `end`, after those of its `parent`.

    Tokens are not stored.  Two tables have the same token at a position if both
    name it, with equal names for equally many tokens.  A token without a name
    equals only itself.
    """

    __slots__ = ("children", "end", "parent", "source", "start")

    def __init__(self, source: BlockTable, start: int, end: int, parent: Self | None):
        self.source = source
        self.start = start
        self.end = end
        self.parent = parent
        self.children: dict[Hashable, Self] = {}

    @property
    def tokens(self) -> int:
        return self.end - self.start


N = TypeVar("N", bound=RadixNode)


class RadixTree(Generic[N]):
    """Nodes by the tokens they begin with, below a `root` without tokens."""

    __slots__ = ("root",)

    def __init__(self, root: N) -> None:
        self.root = root

    def match(self, table: BlockTable, end: int) -> tuple[int, N]:
        """How many of the first *end* tokens of *table* are in the tree, and the last matching node.  Changes nothing.

        The match may end inside that node.
        """
        node, position = self.root, 0
        while position < end and (child := self.child(node, table, position)):
            position += common_tokens(child.source, table, position, min(child.end, end))
            node = child
            if position < child.end:
                break
        return position, node

    def child(self, node: N, table: BlockTable, position: int) -> N | None:
        """The child of *node* that begins with the token of *table* at *position*."""
        return node.children.get(_first_token(table, position))

    def append(self, node: N) -> N:
        """Make *node* a child of its parent, which has none that begins alike; return it."""
        assert node.parent is not None, "there is but one root"
        node.parent.children[_first_token(node.source, node.start)] = node
        return node

    def split(self, node: N, head: N) -> N:
        """Put *head*, the first part of *node*, between *node* and its parent; return *head*."""
        head.children[_first_token(node.source, head.end)] = node
        self.append(head)
        node.parent, node.start = head, head.end
        return head

    def remove(self, leaf: N) -> N:
        """Remove *leaf*, which has no children; return its parent."""
        assert leaf.parent is not None and not leaf.children, "only leaves can be removed"
        del leaf.parent.children[_first_token(leaf.source, leaf.start)]
        return leaf.parent


def common_tokens(table: BlockTable, other: BlockTable, start: int, end: int) -> int:
    """How many tokens of the two tables agree from *start* on, up to *end*; those before *start* do."""
    if table is other:
        return end - start
    end, size = min(end, table.named_tokens, other.named_tokens), table.tokens_per_name
    if size != other.tokens_per_name or end <= start:
        return 0
    first, last = start // size, -(-end // size)
    names, other_names = table.content[first:last], other.content[first:last]
    if names == other_names:
        return end - start
    pairs = enumerate(zip(names, other_names, strict=True), first)
    differing = next((index for index, (name, other_name) in pairs if name != other_name), last)
    return max(0, min(differing * size, end) - start)


def _first_token(table: BlockTable, position: int) -> Hashable:
    """A key for the token of *table* at *position*, which differs between the children of a node."""
    size = table.tokens_per_name
    return (size, table.content[position // size]) if position < table.named_tokens else table
