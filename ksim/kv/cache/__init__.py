"""What stays cached?  KV cache blocks, and the prefixes that requests share through them.

`Cache` is what the scheduler needs, whichever engine's rules the cache follows.  A `Group` of layers says what vLLM
keeps for it.  A `RadixTree` of cached tokens has a node for a run of tokens, and a path for a prefix.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from attrs import Factory, define, field, frozen
from attrs.validators import ge, gt, in_

from ksim.flow.request import Request


class PrefixHit(NamedTuple):
    """A cached prefix of a request: its first `tokens` tokens, and the `nodes` of the cache's tree that hold them.

    `evictable` counts the blocks of the hit that are free until a request uses
    them; only a cache that counts runs of blocks fills it in.
    """

    tokens: int
    nodes: Sequence[Any] = ()
    evictable: int = 0


@define(eq=False)
class BlockTable:
    """The blocks of one request, and the names of its tokens.

    `content` names the tokens from the first on, `tokens_per_name` at a time;
    the last name may stand for fewer.  Equal names after equal prefixes mean
    equal tokens.  Tokens after the first `named_tokens` are this request's alone.

    The request has room for `num_slots` tokens.  The first `published` of them
    can be found by other requests, and `node` is where they end in the tree;
    the first `entered` have been published by this request.

    BlockCache differs: its `content` has one name per block, and it lists the
    request's `blocks` in the order of the tokens instead of counting slots.
    """

    content: Sequence[Hashable] = ()
    tokens_per_name: int = 1
    named_tokens: int = field(
        default=Factory(lambda self: len(self.content) * self.tokens_per_name, takes_self=True))
    blocks: list[int] = field(factory=list)
    num_slots: int = 0
    published: int = 0
    entered: int = 0
    node: Any = None

    def block_names(self, first: int, end: int) -> Iterator[Hashable]:
        """The names of blocks *first* to *end* - 1.

        The first block without a name is named by the table itself, so nobody
        else finds it.  What follows it is unreachable for others, and a number will do.
        """
        covered = len(self.content)
        for index in range(first, end):
            if index < covered:
                yield self.content[index]
            else:
                yield self if index == covered else index


class Pool(Protocol):
    """The blocks of a cache: requests hold the `used` ones; the `free` ones can be had, if need be by eviction.

    Both counts are cheap to read.
    """

    @property
    def free(self) -> int: ...

    @property
    def used(self) -> int: ...


class Cache(Protocol):
    """A KV cache of `capacity` blocks of `block_tokens` tokens.

    A request calls `find_prefix`, `can_allocate` and `attach_prefix` when it is
    admitted, `allocate` and `publish` in each of its steps, and `free` at its
    end.  A preempted request is freed, and may be admitted again.

    Keys and values may also be loaded into blocks of a request: they are
    allocated first, and published when the load has ended.  `same_block` and
    `invalidate` are for loads that fail.

    Many requests that decode can be served at once: `reserve` takes the blocks
    for all of them, and `assign` says later whose they are.  A block table that
    `is_private` need not `publish` anything before it is freed.
    """

    @property
    def capacity(self) -> int: ...

    @property
    def block_tokens(self) -> int: ...

    @property
    def prefix_caching(self) -> bool: ...

    @property
    def pool(self) -> Pool: ...

    @property
    def publishes_computed(self) -> bool:
        """Whether a prompt is shared once it is computed (`publish_computed`); otherwise, once it is scheduled."""
        ...

    def block_table(self, request: Request) -> BlockTable:
        """An empty block table for *request*."""
        ...

    def blocks(self, tokens: int) -> int:
        """How many blocks *tokens* tokens need."""
        ...

    def find_prefix(self, table: BlockTable, num_tokens: int) -> PrefixHit:
        """The longest cached prefix of the first *num_tokens* - 1 tokens of *table*.  Changes nothing.

        The last token is always computed: the next one is sampled from its logits.
        """
        ...

    def can_allocate(self, hit: PrefixHit, tokens: int, spare: int = 0) -> bool:
        """Whether there is room for *tokens* tokens that begin with *hit*, with *spare* blocks left free.

        The cache must not have changed since *hit* was found.
        """
        ...

    def can_admit(self, hit: PrefixHit, tokens: int, spare: int = 0) -> bool:
        """Like `can_allocate`, for a prompt of *tokens* tokens that is computed chunk by chunk.

        Where blocks out of a window are given back on the way, it needs fewer of them.
        """
        ...

    def attach_prefix(self, table: BlockTable, hit: PrefixHit) -> None:
        """Start the empty *table* with the blocks of *hit*; the cache must not have changed since it was found."""
        ...

    def allocate(self, table: BlockTable, tokens: int) -> bool:
        """Give *table* room for *tokens* tokens in all, from the free blocks; all or nothing."""
        ...

    def reserve(self, blocks: int) -> bool:
        """Take *blocks* free blocks, which `assign` gives to tables later; all or nothing."""
        ...

    def assign(self, table: BlockTable, tokens: int) -> None:
        """Give *table* room for *tokens* tokens in all, from reserved blocks, as if it had allocated them.

        This must come before anything else that is done with *table*.
        """
        ...

    def is_private(self, table: BlockTable) -> bool:
        """Whether no other request can find what *table* publishes from now until it is freed.

        If so, one `publish` of all tokens just before `free` suffices, and
        `free` itself does it for a request that has finished.  A private table
        has room for its first `num_slots` tokens.  To answer False is always safe.
        """
        ...

    def publish(self, table: BlockTable, tokens: int) -> None:
        """Note that the first *tokens* tokens of *table* are known and scheduled."""
        ...

    def publish_computed(self, table: BlockTable, tokens: int) -> None:
        """Note that a prompt, or a chunk of one, has been computed up to the first *tokens* tokens."""
        ...

    def free(self, table: BlockTable, tokens: int = 0) -> None:
        """Release all blocks of *table*; a request that has finished passes the number of *tokens* it computed."""
        ...

    def held_blocks(self, table: BlockTable) -> int:
        """How many blocks *table* has; those that `assign` has yet to give are not counted."""
        ...

    def same_block(self, table: BlockTable, other: BlockTable, place: int) -> bool:
        """Whether both tables have the very same block at *place*, counted from the first."""
        ...

    def invalidate(self, table: BlockTable, place: int) -> None:
        """Forget what is in the blocks of *table* from *place* on: no request may find it any more."""
        ...

    def clear(self) -> None:
        """Forget all that no request uses, as the cache of a process that starts has nothing."""
        ...

    def steps_until_change(self, table: BlockTable, tokens: int, async_scheduling: bool) -> int:
        """How many decode steps after the first *tokens* tokens need neither `allocate` nor `publish`.

        With *async_scheduling*, a token is known one step after it is scheduled.
        """
        ...


Kind = Literal["full", "window", "chunk", "state"]


@frozen
class Group:
    """Layers with one block table for each request, of blocks of `block_tokens` tokens, by the rules of vLLM 0.33.

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
        return node.children.get(self.key(table, position))

    def key(self, table: BlockTable, position: int) -> Hashable:
        """A key for the token of *table* at *position*, which differs between the children of a node."""
        size = table.tokens_per_name
        return (size, table.content[position // size]) if position < table.named_tokens else table

    def append(self, node: N) -> N:
        """Make *node* a child of its parent, which has none that begins alike; return it."""
        assert node.parent is not None, "there is but one root"
        node.parent.children[self.key(node.source, node.start)] = node
        return node

    def split(self, node: N, head: N) -> N:
        """Put *head*, the first part of *node*, between *node* and its parent; return *head*."""
        head.children[self.key(node.source, head.end)] = node
        self.append(head)
        node.parent, node.start = head, head.end
        return head

    def remove(self, leaf: N) -> N:
        """Remove *leaf*, which has no children; return its parent."""
        assert leaf.parent is not None and not leaf.children, "only leaves can be removed"
        del leaf.parent.children[self.key(leaf.source, leaf.start)]
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
