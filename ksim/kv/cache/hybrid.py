"""vLLM's KV cache of a model whose layers keep different things: each group of layers has a block table a request.

All blocks come from one pool.  The rules are those of vLLM 0.33's `kv_cache_coordinator.py`: a hit is the longest
prefix that all groups have, one length for all.
"""

from collections.abc import Sequence
from math import gcd, lcm
from typing import ClassVar, Self

from attrs import define, field, frozen

from ksim.flow.request import Request
from ksim.kv.cache import BlockTable, Group, PrefixHit
from ksim.kv.cache.groups import NEVER, CachedBlock, GroupTable, HybridPool, HybridTable, PrefixNode, StateTable

__all__ = ["NEVER", "GroupHit", "HybridCache", "HybridTable"]

Path = Sequence[PrefixNode]


@frozen
class GroupHit:
    """The `blocks` of one group that a hit has, from place `first` on; if it is a `state`, the one at the end."""

    first: int
    blocks: Sequence[CachedBlock]
    state: bool = False


@frozen
class AlikeGroups:
    """Groups `numbers` of the same kind, which are looked up together: a block counts if all of them have it."""

    group: Group
    numbers: Sequence[int]
    unit: int
    alignment: int

    def find(self, path: Path, tokens: int) -> tuple[int, int]:
        """The first and the last place plus one of the longest hit within *tokens* tokens."""
        limit = tokens // self.group.block_tokens
        if self.group.kind == "full":
            return 0, self._aligned(self._run(path, 0, limit))
        if self.group.kind == "chunk":
            first = tokens // self.group.reach * self.group.reach // self.group.block_tokens
            return first, self._run(path, first, limit)
        return self._find_window(path, limit)

    def _find_window(self, path: Path, limit: int) -> tuple[int, int]:
        """The last run of as many cached blocks as are needed, with an aligned end."""
        needed, end, run = self.group.needed, 0, 0
        for index in range(min(limit, len(path) * self.unit // self.group.block_tokens) - 1, -1, -1):
            if not self._has(path, index):
                run = 0
                continue
            if not run:
                end = index + 1
                if end * self.group.block_tokens % self.alignment:
                    continue
            run += 1
            if run >= needed:
                return index, end
        return 0, 0 if self.group.kind == "state" else self._aligned(run)

    def _run(self, path: Path, first: int, limit: int) -> int:
        """The place after the run of cached blocks from *first* on."""
        place = first
        while place < limit and self._has(path, place):
            place += 1
        return place

    def _has(self, path: Path, place: int) -> bool:
        unit = (place + 1) * self.group.block_tokens // self.unit - 1
        if unit >= len(path):
            return False
        blocks = path[unit].blocks
        return all(number in blocks for number in self.numbers)

    def _aligned(self, places: int) -> int:
        tokens = places * self.group.block_tokens
        return (tokens - tokens % self.alignment) // self.group.block_tokens

    def hits(self, path: Path, first: int, end: int) -> list[tuple[int, GroupHit]]:
        """The blocks of each group at places *first* to *end* - 1."""
        size = self.group.block_tokens
        nodes = [path[(index + 1) * size // self.unit - 1] for index in range(first, end)]
        return [(number, GroupHit(first, [node.blocks[number][0] for node in nodes], self.group.kind == "state"))
                for number in self.numbers]


@frozen
class PrefixLookup:
    """Groups that are alike together, full attention first."""

    kinds: Sequence[AlikeGroups]

    @classmethod
    def of(cls, groups: Sequence[Group], unit: int, alignment: int) -> Self:
        """The lookup for *groups*, whose prefixes are named by the *unit* and hit in multiples of *alignment*."""
        alike: dict[Group, list[int]] = {}
        for number, group in enumerate(groups):
            alike.setdefault(group, []).append(number)
        kinds = [AlikeGroups(group, numbers, unit, alignment) for group, numbers in alike.items()]
        return cls(sorted(kinds, key=lambda kind: kind.group.kind != "full"))

    def find(self, path: Path, most: int) -> tuple[PrefixHit, int]:
        """The longest hit of at most *most* tokens on *path*, and the longest that some group had on the way."""
        places: dict[int, tuple[int, int]] = {}
        tokens, longest = most, 0
        while True:
            shorter = tokens
            for number, kind in enumerate(self.kinds):
                if kind.group.kind == "full" and number in places:  # of a run from the start, any part is cached
                    shorter = min(shorter, places[number][1] * kind.group.block_tokens)
                    continue
                places[number] = kind.find(path, shorter)
                shorter = places[number][1] * kind.group.block_tokens
                longest = max(longest, shorter)
            if shorter >= tokens:
                break
            tokens = shorter
            if self._in_one_pass:
                break
        return self._hit(path, places, tokens), longest

    @property
    def _in_one_pass(self) -> bool:
        return len(self.kinds) == 2 and self.kinds[0].group.kind == "full"

    def _hit(self, path: Path, places: dict[int, tuple[int, int]], tokens: int) -> PrefixHit:
        if not tokens:
            return PrefixHit(0)
        hits, evictable = {}, 0
        for index, kind in enumerate(self.kinds):
            end = tokens // kind.group.block_tokens
            for number, hit in kind.hits(path, min(places[index][0], end), end):
                hits[number] = hit
                skipped = max(0, kind.group.out_of_reach(tokens) - hit.first)
                evictable += sum(not block.users for block in hit.blocks[skipped:])
        return PrefixHit(tokens, tuple(hits[number] for number in sorted(hits)), evictable)


@define(eq=False)
class HybridCache:
    """A cache of `capacity` blocks for `groups` of layers; without `prefix_caching`, no block is ever reused.

    A request has at most `in_flight` tokens in flight and `max_model_len` in all: a window never holds more blocks
    than that takes.  Of windows and states only what a later request can use enters the cache: what precedes the end
    of a prompt, and what precedes the end of a prefix that other groups know.  If `dense`, all of it does.  A scheduler
    says in `prefill_end` where the prefill of the request ends that it admits or extends.
    """

    capacity: int
    groups: Sequence[Group]
    prefix_caching: bool = True
    in_flight: int = 1 << 40
    max_model_len: int = 1 << 40
    dense: bool = False
    unhashed_first: bool = True
    prefill_end: int = field(default=NEVER, init=False)
    pool: HybridPool = field(init=False)
    root: PrefixNode = field(init=False)
    alignment: int = field(init=False)
    unit: int = field(init=False)
    state: Group | None = field(init=False)  # a group of states that are kept for others
    _lookup: PrefixLookup = field(init=False)
    _most: list[int] = field(init=False)
    _reserved: int = field(default=0, init=False)
    _fresh: set[PrefixNode] = field(factory=set, init=False)
    _dense: bool = field(init=False)

    publishes_computed: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        sizes = [group.block_tokens for group in self.groups]
        self.pool = HybridPool(self.capacity, self.unhashed_first or not self.prefix_caching)
        self.root = PrefixNode(None, None)
        self.alignment = lcm(*sizes)
        self.unit = gcd(*sizes) if self.prefix_caching else self.alignment
        self.state = next((group for group in self.groups if group.kind == "state"), None)
        self._lookup = PrefixLookup.of(self.groups, self.unit, self.alignment)
        self._dense = self.dense or any(group.kind == "chunk" for group in self.groups)
        self._most = [group.most(self.in_flight, self.max_model_len) or 1 << 60 for group in self.groups]

    @property
    def block_tokens(self) -> int:
        """The tokens of a block of full attention, or of the first group."""
        return next((group for group in self.groups if group.kind == "full"), self.groups[0]).block_tokens

    def block_table(self, request: Request) -> HybridTable:
        """Empty block tables for *request*."""
        tables = [(StateTable if group.kind == "state" else GroupTable)(group, number, self.pool)
                  for number, group in enumerate(self.groups)]
        content = request.content(self.unit)
        return HybridTable(content, self.unit, groups=tables, prompt=request.prompt,
                           shared=max(request.prompt, len(content) * self.unit))

    def blocks(self, tokens: int) -> int:
        """How many blocks *tokens* tokens need at most, whatever is in flight."""
        return sum(min(group.blocks(tokens), 2 if group.kind == "state" else most)
                   for group, most in zip(self.groups, self._most, strict=True))

    def begin_step(self) -> None:
        """Begin a schedule: states that entered in the one before may be used from now on."""
        self._fresh.clear()

    # Admission.

    def find_prefix(self, table: BlockTable, num_tokens: int) -> PrefixHit:
        """The longest prefix of the first *num_tokens* - 1 tokens that all groups have; notes the table's junction."""
        assert isinstance(table, HybridTable)
        table.junction = 0
        if not self.prefix_caching:
            return PrefixHit(0)
        path, node = [], self.root
        for name in table.block_names(0, (num_tokens - 1) // self.unit):
            child = node.children.get(name)
            if child is None:
                break
            path.append(child)
            node = child
        if not path:
            return PrefixHit(0)
        hit, longest = self._lookup.find(path, num_tokens - 1)
        table.junction = longest if longest > hit.tokens else 0
        return hit

    def can_admit(self, hit: PrefixHit, tokens: int, spare: int = 0) -> bool:
        """Whether there is room for a prompt of *tokens* tokens that begins with *hit*, computed chunk by chunk."""
        return self._needed(hit, tokens, self._most) + spare <= self.pool.free and not self._is_fresh(hit)

    def can_allocate(self, hit: PrefixHit, tokens: int, spare: int = 0) -> bool:
        """Whether there is room for *tokens* tokens at once that begin with *hit*, with *spare* blocks left free."""
        return self._needed(hit, tokens, None) + spare <= self.pool.free and not self._is_fresh(hit)

    def _needed(self, hit: PrefixHit, tokens: int, most: Sequence[int] | None) -> int:
        needed = hit.evictable
        for number, group in enumerate(self.groups):
            end = tokens - (group.lookahead if most is None else 0)  # only a whole prompt comes without these slots
            blocks = group.blocks(end) if most is None else min(group.blocks(end), most[number])
            new = blocks - max(group.out_of_reach(hit.tokens), hit.tokens // group.block_tokens)
            if group.kind == "state":
                new = min(new, 1 + (end >= self.prefill_end and group.keeps_amid(
                    hit.tokens, end, (end - 1) // self.alignment * self.alignment, self.unit)))
            needed += max(0, new) + group.drafts
        return needed

    def _is_fresh(self, hit: PrefixHit) -> bool:
        """Whether *hit* ends in a state that is computed only by this very step."""
        return bool(self._fresh) and any(
            part.state and part.blocks and part.blocks[-1].node in self._fresh for part in hit.nodes)

    def attach_prefix(self, table: BlockTable, hit: PrefixHit) -> None:
        """Start the empty *table* with the blocks of *hit*."""
        assert isinstance(table, HybridTable)
        assert not any(own.length for own in table.groups), "a request that holds blocks was admitted again"
        for own, part in zip(table.groups, hit.nodes, strict=False):
            own.attach(hit.tokens, part.first, part.blocks)
        table.published = table.processed = hit.tokens
        boundaries: Sequence[int] = (table.prompt - 1, table.junction)
        if self.dense:
            boundaries = range(self.alignment, self.max_model_len + 1, self.alignment)
        table.kept = [group.kept_before(boundaries, self.alignment) for group in self.groups]
        table.note_change()

    # Blocks of running requests.

    def allocate(self, table: BlockTable, tokens: int) -> bool:
        """Give *table* room for *tokens* tokens in all, all or nothing; what is out of reach is given back first."""
        assert isinstance(table, HybridTable)
        if table.processed >= table.reach:
            for own in table.groups:
                own.give_back(table.processed)
            table.note_change()
        if tokens <= table.room:
            return True
        if self.state is not None:
            table.note_checkpoints(tokens, self.alignment, self.prefill_end)
        missing = self.missing(table, tokens)
        if missing > self.pool.free:
            return False
        self.pool.take(missing)
        for own in table.groups:
            own.grow(tokens)
        table.note_change()
        return True

    def missing(self, table: BlockTable, tokens: int) -> int:
        """How many blocks *table* lacks for *tokens* tokens in all."""
        assert isinstance(table, HybridTable)
        return 0 if tokens <= table.room else sum(own.missing(tokens) for own in table.groups)

    def publish(self, table: BlockTable, tokens: int) -> None:
        """Publish the blocks that later requests may need of the first *tokens* tokens, an aligned number."""
        full = tokens - tokens % self.alignment
        if full <= table.published or not self.prefix_caching:
            return
        assert isinstance(table, HybridTable)
        published, table.published = table.published, full
        if published < table.shared or self._dense:
            self._fresh.update(table.enter(self.root, full))

    def publish_computed(self, table: BlockTable, tokens: int) -> None:
        """Do nothing: blocks are published when they are scheduled."""

    def free(self, table: BlockTable, tokens: int = 0) -> None:
        """Release all blocks of *table*, group by group, last block first."""
        assert isinstance(table, HybridTable)
        if tokens:
            self.publish(table, tokens)
        if table.published:
            table.enter(self.root, table.published)
        if not tokens:
            table.reveal(self.root)
        for own in table.groups:
            own.clear()
        table.forget_path()
        table.published = table.processed = table.room = 0
        table.reach = NEVER

    # What engines ask.

    def held_blocks(self, table: BlockTable) -> int:
        """How many blocks *table* has, over all groups."""
        assert isinstance(table, HybridTable)
        return sum(own.held for own in table.groups)

    def steps_until_change(self, table: BlockTable, tokens: int, async_scheduling: bool) -> int:
        """How many decode steps after the first *tokens* tokens take nothing, give nothing back and publish nothing."""
        assert isinstance(table, HybridTable)
        steps = min(table.room, table.reach + async_scheduling) - tokens
        if self.prefix_caching and (self._dense or table.published < table.shared):
            steps = min(steps, table.published + self.alignment - tokens - 1 + async_scheduling)
        return max(steps, 0)

    def changes_before(self, table: HybridTable, tokens: int) -> bool:
        """Whether *table* gives blocks back or lets others find some before *tokens* tokens are processed."""
        return table.reach <= tokens or (self.prefix_caching and (self._dense or table.published < table.shared))

    def is_private(self, table: BlockTable) -> bool:
        """Whether *table* is that of a waiting request without names; windows that move on give blocks back."""
        assert isinstance(table, HybridTable)
        return not table.room and not len(table.content)

    def reserve(self, blocks: int) -> bool:
        """Take *blocks* free blocks, which `assign` gives to tables later; all or nothing."""
        if blocks > self.pool.free:
            return False
        self.pool.take(blocks)
        self._reserved += blocks
        return True

    def assign(self, table: BlockTable, tokens: int) -> None:
        """Give *table* room for *tokens* tokens in all, from reserved blocks."""
        assert isinstance(table, HybridTable)
        self._reserved -= self.missing(table, tokens)
        for own in table.groups:
            own.grow(tokens)
        table.note_change()

    def same_block(self, table: BlockTable, other: BlockTable, place: int) -> bool:
        """Whether both tables have the very same block at *place* of some group."""
        assert isinstance(table, HybridTable) and isinstance(other, HybridTable)
        return any(one.found.get(place) is not None and one.found[place] is two.found.get(place)
                   for one, two in zip(table.groups, other.groups, strict=True))

    def clear(self) -> None:
        """Forget all that no request uses: have all free blocks taken once, and given back."""
        blocks = self.pool.free
        self.pool.take(blocks)
        self.pool.release_unhashed(blocks)

    def invalidate(self, table: BlockTable, place: int) -> None:
        """Forget what is in the blocks of *table* from *place* on."""
        assert isinstance(table, HybridTable)
        for own in table.groups:
            for number in [number for number in own.found if number >= place]:
                own.found[number].forget()
