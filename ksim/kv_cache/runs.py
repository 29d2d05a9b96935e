"""A radix tree of cached tokens: a node is a run of tokens, a path one prefix."""

from collections.abc import Hashable, Iterator
from typing import Generic, Self, TypeVar

from ksim.kv_cache.cache import Holding


class Run:
    """The tokens of `source` from place `start` up to `end`, after those of its parent.

    The tokens themselves are nowhere: two requests have the same one at a place
    if they have equal names there, each for as many tokens, or are the same.
    """

    __slots__ = ("children", "end", "parent", "source", "start")

    def __init__(self, source: Holding, start: int, end: int, parent: Self | None):
        self.source = source
        self.start = start
        self.end = end
        self.parent = parent
        self.children: dict[Hashable, Self] = {}

    @property
    def tokens(self) -> int:
        return self.end - self.start


R = TypeVar("R", bound=Run)


class RunTree(Generic[R]):
    """Which runs follow which.  The `root` is empty."""

    __slots__ = ("root",)

    def __init__(self, root: R) -> None:
        self.root = root

    def match(self, holding: Holding, end: int) -> tuple[int, R]:
        """How many of the first *end* tokens of *holding* are here, and the run in which they end.  Changes nothing."""
        node, place = self.root, 0
        while place < end and (child := self.child(node, holding, place)):
            place += agreement(child.source, holding, place, min(child.end, end))
            node = child
            if place < child.end:
                break
        return place, node

    def child(self, node: R, holding: Holding, place: int) -> R | None:
        """The run after *node* that begins as *holding* goes on at *place*."""
        return node.children.get(_token(holding, place))

    def append(self, run: R) -> R:
        """Have *run* follow its parent; nothing there may begin like it."""
        assert run.parent is not None, "there is but one root"
        run.parent.children[_token(run.source, run.start)] = run
        return run

    def split(self, node: R, first: R) -> R:
        """Cut *node* where *first* ends, which has its beginning, its source and its parent; return *first*."""
        first.children[_token(node.source, first.end)] = node
        self.append(first)
        node.parent, node.start = first, first.end
        return first

    def remove(self, leaf: R) -> R:
        """Drop *leaf*, which nothing follows; return what it followed."""
        assert leaf.parent is not None and not leaf.children, "what others follow cannot be dropped"
        del leaf.parent.children[_token(leaf.source, leaf.start)]
        return leaf.parent

    def __iter__(self) -> Iterator[R]:
        """All runs but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def agreement(one: Holding, other: Holding, start: int, end: int) -> int:
    """How many tokens, from place *start* up to *end*, are the same in both; the same stand before them."""
    if one is other:
        return end - start
    end, unit = min(end, one.named, other.named), one.unit
    if unit != other.unit or end <= start:
        return 0
    first, last = start // unit, -(-end // unit)
    names, others = one.content[first:last], other.content[first:last]
    if names == others:
        return end - start
    pairs = enumerate(zip(names, others, strict=True), first)
    differing = next((place for place, (name, another) in pairs if name != another), last)
    return max(0, min(differing * unit, end) - start)


def _token(holding: Holding, place: int) -> Hashable:
    """The token at *place*, as far as it tells the followers of a node apart."""
    return (holding.unit, holding.content[place // holding.unit]) if place < holding.named else holding
