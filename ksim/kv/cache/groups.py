"""Groups of layers that share a block table: what each keeps of a request, by vLLM's rules (0.33).

vLLM's `kv_cache_interface.py` and `single_type_kv_cache_manager.py` have one class a kind.

The blocks that one request holds for one group of layers.

The block tables of one request, one for each group of layers, and where it is recorded in the tree.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from attrs import define, field, frozen
from attrs.validators import ge, gt, in_

from ksim.kv.cache import BlockTable
from ksim.kv.cache.hybrid_pool import CachedBlock, HybridPool, PrefixNode

Kind = Literal["full", "window", "chunk", "state"]


@frozen
class Group:
    """Layers with one block table for each request, of blocks of `block_tokens` tokens.

    Layers of a "window" see the last `reach` tokens, those of a "chunk" the tokens of the current chunk of `reach`.  A
    "state" is that of the last token; its block at a place is the state at that block's end.  If there is a
    `checkpoint`, the kernels of prompts keep states at multiples of so many tokens on their way, and not only at the
    end of a chunk.  With speculation, each of so many `drafts` has a state of its own until it is accepted; slots
    for `lookahead` tokens of a drafter need none.
    """

    kind: Kind = field(validator=in_(("full", "window", "chunk", "state")))
    block_tokens: int = field(validator=gt(0))
    reach: int = field(default=0, validator=ge(0))
    checkpoint: int = field(default=0, validator=ge(0))
    drafts: int = field(default=0, validator=ge(0))
    lookahead: int = field(default=0, validator=ge(0))

    @property
    def seen(self) -> int:
        """How many tokens a window spans; a state stands for the last token, and the next one looks at it."""
        return 2 if self.kind == "state" else self.reach

    @property
    def sparse(self) -> bool:
        """Whether only the blocks that a later request can use enter the cache."""
        return self.kind in ("window", "state")

    @property
    def needed(self) -> int:
        """How many cached blocks in a row, up to its end, a hit needs in this group."""
        return -(-(self.seen - 1) // self.block_tokens)

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def out_of_reach(self, computed: int) -> int:
        """How many of the first blocks are not needed once *computed* tokens are computed."""
        if self.kind == "full":
            return 0
        if self.kind == "chunk":
            return computed // self.reach * self.reach // self.block_tokens
        return max(0, computed - self.seen + 1) // self.block_tokens

    def most(self, in_flight: int, max_model_len: int) -> int | None:
        """The most blocks that a request holds with at most *in_flight* tokens in flight; None where nothing is
        freed."""
        if self.kind == "window":
            return self.blocks(min(self.reach - 1 + in_flight, max_model_len)) + 1
        if self.kind == "chunk":
            return self.blocks(min(self.reach + in_flight, max_model_len))
        return None

    def keeps_amid(self, start: int, end: int, position: int, unit: int) -> bool:
        """Whether a chunk from *start* to *end* can keep the state after *position* tokens, which hits can end at."""
        earlier = -(-end // self.block_tokens) - 2 > (start - 1) // self.block_tokens
        return (self.checkpoint > 0 and start % unit == 0 and earlier and start + unit <= position < end
                and (position - start) % self.checkpoint == 0)

    def whole_request(self, in_flight: int, max_model_len: int) -> int:
        """How many blocks vLLM sets aside for a request of *max_model_len* tokens when it checks that one fits."""
        if self.kind == "state":
            return 2 + (self.checkpoint > 0) + self.drafts
        return (self.most(in_flight, max_model_len) or self.blocks(max_model_len)) + self.drafts

    def held(self, new: int, context: int) -> int:
        """How many blocks a request holds in a step of *new* tokens after *context* ones."""
        return self.drafts + (1 if self.kind == "state" else self.blocks(context + new) - self.out_of_reach(context))

    def kept_before(self, boundaries: Sequence[int], alignment: int) -> list[tuple[int, int]]:
        """Which places, from and to, a later request needs that goes on at one of *boundaries*, in tokens.

        Of full attention and chunks, vLLM lets all enter the cache.
        """
        if not self.sparse:
            return [(0, 1 << 60)]
        kept: list[tuple[int, int]] = []
        for boundary in sorted(boundaries):
            end = boundary // alignment * alignment // self.block_tokens
            begin = max(end - self.needed, kept[-1][1] if kept else 0)
            if begin < end:
                kept.append((begin, end))
        return kept


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
        """Let what is worth it of the first *full* tokens enter the cache; return where its states are found."""
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
        """Let the tree forget what only the request needed."""
        if self.path:
            self.path[-1].pins -= 1
            self.path[-1].prune()
            self.path = []

    def finder(self, block_tokens: int) -> FindNode:
        """Where the blocks of a group with blocks of *block_tokens* tokens are found."""
        path, units = self.path, block_tokens // self.tokens_per_name
        return lambda place: path[(place + 1) * units - 1]
