"""What a scheduler needs of a KV cache, whoever's rules it follows."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from attrs import Factory, define, field

from ksim.flow.request import Request


class Hit(NamedTuple):
    """The first `tokens` tokens of a request are cached, in these `nodes` of the cache's tree.

    A cache that counts in runs says how many of the blocks are `unused`: nobody uses them, and they count as free.
    """

    tokens: int
    nodes: Sequence[Any] = ()
    unused: int = 0


@define(eq=False)
class Holding:
    """What one request holds of a cache, and what its tokens are.

    Each name in `content` stands for `unit` tokens; the last may stand for
    fewer, so that `named` tokens have names.  What comes after them is this
    request's alone.  There is room for so many `tokens`, and the first
    `entered` of them can be found, down to `node` of the tree.  The cache that
    goes block by block has a name for each block instead, keeps `blocks` in the
    order of the tokens, and counts in `entered` how many of these can be found.
    """

    content: Sequence[Hashable] = ()
    unit: int = 1
    named: int = field(default=Factory(lambda self: len(self.content) * self.unit, takes_self=True))
    blocks: list[int] = field(factory=list)
    tokens: int = 0
    entered: int = 0
    node: Any = None

    def names(self, first: int, end: int) -> Iterator[Hashable]:
        """The names of blocks *first* to *end* - 1.  Below a name that is only its own, a request need but count."""
        covered = len(self.content)
        for index in range(first, end):
            if index < covered:
                yield self.content[index]
            else:
                yield self if index == covered else index


class Pool(Protocol):
    """Blocks: `used` ones are held by requests, `free` ones can be had, if need be by forgetting what they hold.

    Both are cheap to ask for.
    """

    @property
    def free(self) -> int: ...

    @property
    def used(self) -> int: ...


class Cache(Protocol):
    """A KV cache of `capacity` blocks of `block_tokens` tokens.

    A request's way is `lookup`, `fits`, `open`, then `grow` and `enter` for
    each of its steps, and `close`; after that it may come back.

    What many take at once need not be asked for one by one: `take` takes the
    blocks of all, and `settle` says later whose they are.  A holding that is
    `quiet` need not `enter` what it computes before it is closed.
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
    def enters_computed(self) -> bool:
        """Whether prompts can be found once they are computed, and `computed` is to be told; else once scheduled."""
        ...

    def holding(self, request: Request) -> Holding:
        """What *request* holds at first: nothing."""
        ...

    def blocks(self, tokens: int) -> int:
        """How many blocks hold *tokens* tokens."""
        ...

    def lookup(self, holding: Holding, known: int) -> Hit:
        """What is cached of the first *known* - 1 tokens: the last is computed anyway.  Changes nothing."""
        ...

    def fits(self, hit: Hit, tokens: int, spare: int = 0) -> bool:
        """Whether *tokens* tokens could be held, *spare* blocks staying free; they begin with *hit*.

        The cache has not changed since that was looked up.
        """
        ...

    def open(self, holding: Holding, hit: Hit) -> None:
        """Let *holding* start from *hit*, which was looked up since the cache last changed."""
        ...

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Have *holding* hold *tokens* tokens in all, at the cost of what is free; all or nothing."""
        ...

    def take(self, blocks: int) -> bool:
        """Take *blocks* blocks, at the cost of what is free, for holdings that `settle` names; all or nothing."""
        ...

    def settle(self, holding: Holding, tokens: int) -> None:
        """Let *holding* hold *tokens* tokens in all, in blocks that `take` took: as `grow` would, had it been asked.

        It comes before anything else that is done with *holding*.
        """
        ...

    def quiet(self, holding: Holding) -> bool:
        """Whether nobody else can ever find what *holding* enters from now on, until it is closed.

        So it suffices to `enter` all that is known of it once, before it is
        closed: `close` does so itself for a request that is finished.  A quiet
        holding needs no block for its first `holding.tokens` tokens.  It is in
        any case right to say no.
        """
        ...

    def enter(self, holding: Holding, tokens: int) -> None:
        """Take note that the first *tokens* tokens of *holding* are known and scheduled."""
        ...

    def computed(self, holding: Holding, tokens: int) -> None:
        """Take note that a prompt, or a chunk of it, is computed up to the first *tokens* tokens."""
        ...

    def close(self, holding: Holding, tokens: int = 0) -> None:
        """Give back all that *holding* holds; a request that is finished has computed *tokens* known tokens."""
        ...

    def steps_until_event(self, holding: Holding, tokens: int, ahead: bool) -> int:
        """How many steps of one token each, on top of *tokens*, need neither `grow` nor `enter`.

        With *ahead*, a token is known one step after it is scheduled.
        """
        ...
