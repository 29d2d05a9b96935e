"""The block tables of one request, one for each group of layers, and the pool from which all groups take blocks.

vLLM's `single_type_kv_cache_manager.py` has one class a kind of group.  The order of eviction is vLLM's, as in
`block_cache`.  Free blocks that hold nothing findable are taken first, so they are only counted.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from attrs import define, field

from ksim.kv.cache import BlockTable, Group


class PrefixNode:
    """The tokens of one unit after a given prefix, and by group the blocks whose content ends there."""

    __slots__ = ("blocks", "children", "name", "parent", "pins")

    def __init__(self, name: Hashable, parent: "PrefixNode | None"):
        self.name = name
        self.parent = parent
        self.children: dict[Hashable, PrefixNode] = {}
        self.blocks: dict[int, list[CachedBlock]] = {}
        self.pins = 0  # block tables that end here

    def child(self, name: Hashable) -> "PrefixNode":
        """The child called *name*, which is made if need be."""
        node = self.children.get(name)
        if node is None:
            node = self.children[name] = PrefixNode(name, self)
        return node

    def prune(self) -> None:
        """Remove the node if nothing needs it, and its ancestors likewise."""
        node = self
        while node.parent is not None and not (node.pins or node.children or node.blocks):
            if node.parent.children.get(node.name) is node:
                del node.parent.children[node.name]
            node = node.parent


class CachedBlock:
    """A block of group `group` that can be found at `node`, and how many `users` hold it; without a node, nobody finds
    it any more."""

    __slots__ = ("group", "node", "users")

    def __init__(self, group: int, node: PrefixNode):
        self.group = group
        self.node: PrefixNode | None = node
        self.users = 1
        node.blocks.setdefault(group, []).append(self)

    def forget(self) -> None:
        """Remove the block from the tree, so that nobody finds it any more."""
        node, self.node = self.node, None
        if node is None:
            return
        same = node.blocks[self.group]
        same.remove(self)
        if not same:
            del node.blocks[self.group]
            node.prune()


class PrivateBlocks:
    """A run of so many free `blocks` that nobody will look for, at their place in the order of eviction."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: int):
        self.blocks = blocks


@define(eq=False)
class HybridPool:
    """`capacity` blocks, of which `empty` ones are free and hold nothing findable, and `queued` ones are free too.

    Without `unhashed_first`, freed blocks that were never in the cache are queued behind all others.
    """

    capacity: int
    unhashed_first: bool = True
    empty: int = field(init=False)
    queued: int = field(default=0, init=False)
    _queue: "OrderedDict[CachedBlock | PrivateBlocks, None]" = field(factory=OrderedDict, init=False)

    def __attrs_post_init__(self) -> None:
        self.empty = self.capacity

    @property
    def free(self) -> int:
        return self.empty + self.queued

    @property
    def used(self) -> int:
        return self.capacity - self.empty - self.queued

    def take(self, blocks: int) -> None:
        """Take so many free *blocks*, which must be there."""
        if blocks <= self.empty:
            self.empty -= blocks
            return
        blocks, self.empty = blocks - self.empty, 0
        self.queued -= blocks
        assert self.queued >= 0, "blocks were taken that are not free"
        while blocks:
            blocks -= self._evict(blocks)

    def _evict(self, blocks: int) -> int:
        """Evict up to so many *blocks* from the front of the queue; return how many."""
        first = next(iter(self._queue))
        if isinstance(first, CachedBlock):
            del self._queue[first]
            first.forget()
            return 1
        taken = min(blocks, first.blocks)
        first.blocks -= taken
        if not first.blocks:
            del self._queue[first]
        return taken

    def share(self, block: CachedBlock) -> None:
        """Add a user to *block*, which may be free or in use."""
        if not block.users:
            del self._queue[block]
            self.queued -= 1
        block.users += 1

    def release(self, blocks: Iterable[CachedBlock]) -> None:
        """Remove a user from each of *blocks*, and queue those without any in their order."""
        for block in blocks:
            assert block.users > 0, "a block was given back more often than it was taken"
            block.users -= 1
            if not block.users and block.node is None:
                self.release_unhashed(1)
            elif not block.users:
                self._queue[block] = None
                self.queued += 1

    def release_private(self, blocks: int) -> None:
        """Queue so many *blocks* that were in the cache, though nobody else could find them."""
        if blocks:
            self._queue[PrivateBlocks(blocks)] = None
            self.queued += blocks

    def release_unhashed(self, blocks: int) -> None:
        """Give back so many *blocks* that are not in the cache."""
        if self.unhashed_first:
            self.empty += blocks
        else:
            self.release_private(blocks)


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
        """The number of blocks that it holds."""
        return self.length - self.first + self.drafts

    @property
    def room(self) -> int:
        """The number of tokens for which it has blocks."""
        return self.length * self.group.block_tokens

    def missing(self, tokens: int) -> int:
        """The number of blocks that it lacks for *tokens* tokens in all."""
        return max(0, self.group.blocks(tokens) - self.length) + self.group.drafts - self.drafts

    def grow(self, tokens: int) -> None:
        """Add the places for *tokens* tokens in all, whose blocks have been taken."""
        self.length = max(self.length, self.group.blocks(tokens))
        self.drafts = self.group.drafts

    def attach(self, tokens: int, first: int, blocks: Sequence[CachedBlock]) -> None:
        """Begin with a hit of *tokens* tokens, of which *blocks* are found from place *first* on."""
        self.length = self.entered = self.group.blocks(tokens)
        self.first = max(first, self.group.out_of_reach(tokens))
        for index, block in enumerate(blocks, first):
            if index >= self.first:
                self.pool.share(block)
                self.found[index] = block

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
        """The number of places from *first* to *end* - 1 that have a block."""
        return max(0, min(end, self.length) - max(first, self.first))

    def _holding(self, first: int, end: int) -> Iterator[Places]:
        """The runs of places with blocks among the places *first* to *end* - 1."""
        if (first := max(first, self.first)) < (end := min(end, self.length)):
            yield first, end

    def enter(self, end: int, kept: Sequence[Places], named: int, node: FindNode) -> list[PrefixNode]:
        """Enter the blocks before place *end* that are among the *kept* into the tree, and return their nodes.

        *node* returns the node of a place.  Places from *named* on are this request's alone.
        """
        nodes = []
        for begin, stop in kept:
            for first, last in self._holding(max(begin, self.entered), min(stop, end)):
                for index in range(first, min(last, named)):
                    nodes.append(node(index))
                    self.found[index] = CachedBlock(self.number, nodes[-1])
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


@define(eq=False)
class HybridTable(BlockTable):
    """The block tables of one request, one for each group; `content` has a name for each unit of tokens.

    `path` are the nodes of the tree up to where the request is recorded.  `prompt` counts its prompt's tokens.  After
    the first `shared` tokens, nothing enters the cache that others can use.  `kept` are the places, by group, that
    enter it.  `junction` is the longest prefix that some group knew at the latest lookup, if it is longer than the hit.

    A scheduler keeps `in_flight`, the tokens of batches that are not back, and says in `processed` how many tokens are
    computed and back.  There is `room` for so many tokens, and nothing is out of reach before `reach` are processed.
    """

    groups: list[GroupTable] = field(factory=list)
    path: list[PrefixNode] = field(factory=list)
    kept: list[Sequence[Places]] = field(factory=list)
    prompt: int = 0
    shared: int = 0
    junction: int = 0
    in_flight: int = 0
    processed: int = 0
    room: int = 0
    reach: int = NEVER

    def note_change(self) -> None:
        """Update `room` and `reach` after a change in the tables of groups."""
        self.room = min(own.room for own in self.groups)
        self.reach = min(own.reach for own in self.groups)

    def enter(self, root: PrefixNode, full: int) -> list[PrefixNode]:
        """Enter the blocks of the first *full* tokens that later requests may need; return the nodes of its states."""
        named, states = len(self.content) * self.tokens_per_name, list[PrefixNode]()
        self.record(root, min(full // self.tokens_per_name, len(self.content)))
        for own, kept in zip(self.groups, self.kept, strict=True):
            size = own.group.block_tokens
            nodes = own.enter(full // size, kept, max(named // size, own.entered), self.finder(size))
            if own.group.kind == "state":
                states += nodes
        return states

    def reveal(self, root: PrefixNode) -> None:
        """Record what only the request can find: it may be admitted again."""
        ends = [own.private[-1][1] * own.group.block_tokens for own in self.groups if own.private]
        self.record(root, max(ends, default=0) // self.tokens_per_name)
        for own in self.groups:
            own.reveal(self.finder(own.group.block_tokens))

    def note_checkpoints(self, tokens: int, alignment: int, prefill_end: int) -> None:
        """Note which groups keep a state amid the chunk that needs slots for *tokens* tokens, if the prefill ends with
        it."""
        start = self.processed + self.in_flight
        for own in self.groups:
            if isinstance(own, StateTable):
                end = tokens - own.group.lookahead  # where the chunk itself ends
                own.amid = end >= prefill_end and own.group.keeps_amid(
                    start, end, (end - 1) // alignment * alignment, self.tokens_per_name)

    def record(self, root: PrefixNode, units: int) -> None:
        """Record in the tree under *root* that the request begins with its first *units* units."""
        path, first = self.path, len(self.path)
        if units <= first:
            return
        node = path[-1] if path else root
        for name in self.block_names(first, units):
            node = node.child(name)
            path.append(node)
        node.pins += 1
        if first:
            path[first - 1].pins -= 1

    def forget_path(self) -> None:
        """Remove from the tree the path that only this request needed."""
        if self.path:
            self.path[-1].pins -= 1
            self.path[-1].prune()
            self.path = []

    def finder(self, block_tokens: int) -> FindNode:
        """A function from a place to its node, for a group with blocks of *block_tokens* tokens."""
        path, units = self.path, block_tokens // self.tokens_per_name
        return lambda place: path[(place + 1) * units - 1]
