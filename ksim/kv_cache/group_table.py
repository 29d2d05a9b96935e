"""The blocks that one request holds for one group of layers."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import define, field

from ksim.kv_cache.groups import Group
from ksim.kv_cache.hybrid_pool import CachedBlock, HybridPool, PrefixNode

#: More tokens than any request has.
NEVER = 1 << 60
#: Places from and to.
Places = tuple[int, int]
#: Where the block of a place is found.
FindNode = Callable[[int], PrefixNode]


@define(eq=False)
class GroupTable:
    """`length` places for blocks of group `number`, of which those from `first` on are held; the others are empty.

    Beyond these, it has blocks for `drafts`.  The first `entered` places have been considered for the cache.  Blocks
    that others can find are in `found`, by place; the places of those that only this request can find are `private`.
    """

    group: Group
    number: int
    pool: HybridPool
    length: int = 0
    first: int = 0
    entered: int = 0
    found: dict[int, CachedBlock] = field(factory=dict)
    private: list[Places] = field(factory=list)
    drafts: int = 0

    @property
    def held(self) -> int:
        """How many blocks it has."""
        return self.length - self.first + self.drafts

    @property
    def room(self) -> int:
        """For how many tokens it has blocks."""
        return self.length * self.group.block_tokens

    def missing(self, tokens: int) -> int:
        """How many blocks it lacks for *tokens* tokens in all."""
        return max(0, self.group.blocks(tokens) - self.length) + self.group.drafts - self.drafts

    def grow(self, tokens: int) -> None:
        """Add the places for *tokens* tokens in all, whose blocks have been taken."""
        self.length = max(self.length, self.group.blocks(tokens))
        self.drafts = self.group.drafts

    def attach(self, tokens: int, first: int, blocks: Sequence[CachedBlock]) -> None:
        """Begin with a hit of *tokens* tokens, of which *blocks* are found from place *first* on."""
        self.length = self.entered = self.group.blocks(tokens)
        self.first = max(first, self.group.out_of_reach(tokens))
        for place, block in enumerate(blocks, first):
            if place >= self.first:
                self.pool.share(block)
                self.found[place] = block

    def give_back(self, computed: int) -> None:
        """Give back the blocks that are out of reach once *computed* tokens are computed."""
        end = min(self.group.out_of_reach(computed), self.length)
        if end > self.first:
            self._release(self.first, end)
            self.first = end

    def clear(self) -> None:
        """Give back all blocks, the last one first."""
        self._release(self.first, self.length)
        self.pool.release_unhashed(self.drafts)
        self.length = self.first = self.entered = self.drafts = 0
        self.private.clear()

    def _release(self, first: int, end: int) -> None:
        """Give back the blocks at places *first* to *end* - 1, the last one first."""
        held = self._held(first, end)
        named = [self.found.pop(place) for place in self._found(first, end)] if self.found else []
        private = sum(self._held(max(begin, first), min(stop, end)) for begin, stop in self.private)
        self.pool.release_unhashed(held - len(named) - private)
        self.pool.release_private(private)
        self.pool.release(named)

    def _found(self, first: int, end: int) -> Iterable[int]:
        """The places in `found` from *end* - 1 down to *first*."""
        if len(self.found) > end - first:
            return [place for place in range(end - 1, first - 1, -1) if place in self.found]
        return sorted((place for place in self.found if first <= place < end), reverse=True)

    def _held(self, first: int, end: int) -> int:
        """How many of the places *first* to *end* - 1 have a block."""
        return max(0, min(end, self.length) - max(first, self.first))

    def _holding(self, first: int, end: int) -> Iterator[Places]:
        """The runs of places with blocks among the places *first* to *end* - 1."""
        if (first := max(first, self.first)) < (end := min(end, self.length)):
            yield first, end

    def enter(self, end: int, kept: Sequence[Places], named: int, node: FindNode) -> list[PrefixNode]:
        """Let others find the blocks before place *end* that are among the *kept*, and return where they are found.

        *node* says where the block of a place is found.  Places from *named* on are this request's alone.
        """
        nodes = []
        for begin, stop in kept:
            for first, last in self._holding(max(begin, self.entered), min(stop, end)):
                for place in range(first, min(last, named)):
                    nodes.append(node(place))
                    self.found[place] = CachedBlock(self.number, nodes[-1])
                if last > named:
                    self._add_private(max(first, named), last)
        self.entered = max(self.entered, end)
        return nodes

    def _add_private(self, first: int, end: int) -> None:
        if self.private and self.private[-1][1] == first:
            first = self.private.pop()[0]
        self.private.append((first, end))

    def private_places(self) -> Iterator[int]:
        """The places whose blocks only this request can find."""
        for begin, stop in self.private:
            for first, end in self._holding(begin, stop):
                yield from range(first, end)

    def reveal(self, node: FindNode) -> None:
        """Record the private blocks where their request will look for them once it is admitted again."""
        for place in self.private_places():
            self.found[place] = CachedBlock(self.number, node(place))
        self.private.clear()

    @property
    def reach(self) -> int:
        """The number of computed tokens with which a block gets out of reach."""
        size = self.group.block_tokens
        if self.group.kind == "window":
            return self.group.reach - 1 + (self.first + 1) * size
        if self.group.kind == "chunk":
            return (self.first * size // self.group.reach + 1) * self.group.reach
        return NEVER


@define(eq=False)
class StateTable(GroupTable):
    """Blocks for states: those at `places` are held, the places between are empty.

    A chunk takes one, for the state at its end, and one more if it keeps one `amid`.
    """

    places: list[int] = field(factory=list)
    amid: bool = False

    @property
    def held(self) -> int:
        return len(self.places) + self.drafts

    @property
    def room(self) -> int:
        return self.length * self.group.block_tokens + self.group.lookahead

    def missing(self, tokens: int) -> int:
        grows = self.group.blocks(tokens - self.group.lookahead) > self.length
        return grows * (1 + self.amid) + self.group.drafts - self.drafts

    def grow(self, tokens: int) -> None:
        if (length := self.group.blocks(tokens - self.group.lookahead)) > self.length:
            self.length = length
            self.places += [length - 2, length - 1] if self.amid else [length - 1]
        self.amid, self.drafts = False, self.group.drafts

    def attach(self, tokens: int, first: int, blocks: Sequence[CachedBlock]) -> None:
        super().attach(tokens, first, blocks)
        self.places = sorted(self.found)

    def give_back(self, computed: int) -> None:
        end = self.group.out_of_reach(computed)
        if self.places and self.places[0] < end:
            self._release(0, end)
            self.places = [place for place in self.places if place >= end]

    def clear(self) -> None:
        super().clear()
        self.places = []

    def _held(self, first: int, end: int) -> int:
        return sum(first <= place < end for place in self.places)

    def _holding(self, first: int, end: int) -> Iterator[Places]:
        return ((place, place + 1) for place in self.places if first <= place < end)

    @property
    def reach(self) -> int:
        return (self.places[0] + 1) * self.group.block_tokens + 1 if self.places else NEVER
