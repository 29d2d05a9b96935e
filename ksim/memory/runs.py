"""A radix tree of cached tokens: a node is a run of tokens, a path one prefix."""

from collections.abc import Hashable, Iterator

from ksim.memory.cache import Holding


class Run:
    """The tokens of `source` from place `start` up to `end`, after those of its parent; `locks` requests use it.

    The tokens themselves are nowhere: two requests have the same one at a place
    if they have equal names there, each for as many tokens, or are the same.
    """

    __slots__ = ("children", "created", "end", "hits", "last_use", "locks", "parent", "source", "start")

    def __init__(self, source: Holding, start: int, end: int, parent: "Run | None", tick: int):
        self.source = source
        self.start = start
        self.end = end
        self.parent = parent
        self.children: dict[Hashable, Run] = {}
        self.locks = 0
        self.created = self.last_use = tick
        self.hits = 0

    @property
    def depth(self) -> int:
        """Tokens from the beginning of the prompt to its end."""
        return self.end

    @property
    def tokens(self) -> int:
        return self.end - self.start


class RunTree:
    """Which runs follow which.  The root is empty, and locked for ever."""

    __slots__ = ("root",)

    def __init__(self) -> None:
        self.root = Run(Holding(), 0, 0, None, 0)
        self.root.locks = 1

    def match(self, holding: Holding, end: int) -> tuple[int, Run]:
        """How many of the first *end* tokens of *holding* are here, and the run in which they end.  Changes nothing."""
        node, place = self.root, 0
        while place < end and (child := self.child(node, holding, place)):
            place += agreement(child.source, holding, place, min(child.end, end))
            node = child
            if place < child.end:
                break
        return place, node

    def child(self, node: Run, holding: Holding, place: int) -> Run | None:
        """The run after *node* that begins as *holding* goes on at *place*."""
        return node.children.get(_token(holding, place))

    def append(self, node: Run, holding: Holding, end: int, tick: int) -> Run:
        """Have the tokens of *holding* up to *end* follow *node*; nothing there may begin like them."""
        run = Run(holding, node.end, end, node, tick)
        node.children[_token(holding, node.end)] = run
        return run

    def split(self, node: Run, place: int, tick: int) -> Run:
        """Cut *node* at *place*; return the first part, which is used and was hit as the whole was."""
        assert node.parent is not None, "the root cannot be split"
        first = Run(node.source, node.start, place, node.parent, tick)
        first.locks, first.hits = node.locks, node.hits
        first.children[_token(node.source, place)] = node
        node.parent.children[_token(node.source, node.start)] = first
        node.parent, node.start = first, place
        return first

    def remove(self, leaf: Run) -> Run:
        """Drop *leaf*, which nothing follows; return what it followed."""
        assert leaf.parent is not None and not leaf.children and not leaf.locks, "what is in use cannot be dropped"
        del leaf.parent.children[_token(leaf.source, leaf.start)]
        return leaf.parent

    def __iter__(self) -> Iterator[Run]:
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
