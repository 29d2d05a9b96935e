"""What the scheduler needs from a KV cache, whichever engine's rules the cache follows.

What stays cached?  KV cache blocks, and the prefixes that requests share through them.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from attrs import Factory, define, field

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
    can be found by other requests, and `node` is where they end in the tree.

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

    def steps_until_change(self, table: BlockTable, tokens: int, async_scheduling: bool) -> int:
        """How many decode steps after the first *tokens* tokens need neither `allocate` nor `publish`.

        With *async_scheduling*, a token is known one step after it is scheduled.
        """
        ...
