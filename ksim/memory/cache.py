"""What a scheduler needs of a KV cache, whoever's rules it follows."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from attrs import Factory, define, field

from ksim.flow.request import Request


class Hit(NamedTuple):
    """The first `tokens` tokens of a request are cached, in these `nodes` of the cache's tree."""

    tokens: int
    nodes: Sequence[Any] = ()


@define(eq=False)
class Holding:
    """What one request holds of a cache, and what its tokens are.

    Each name in `content` stands for a block of vLLM's cache or `unit` tokens
    of SGLang's; the last may stand for fewer, so that `named` tokens have
    names.  What comes after them is this request's alone.  vLLM's cache keeps
    `blocks`, in the order of the tokens; SGLang's only how many `tokens` there
    is room for.  The first `entered` of either are in the tree, down to `node`.
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
    """Blocks: `used` ones are held by requests, `free` ones can be had, if need be by forgetting what they hold."""

    @property
    def free(self) -> int: ...

    @property
    def used(self) -> int: ...


class Cache(Protocol):
    """A KV cache of `capacity` blocks of `block_tokens` tokens.

    A request's way is `lookup`, `fits`, `open`, then `grow` and `enter` for
    each of its steps, and `close`; after that it may come back.
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
        """Whether *tokens* tokens that begin with *hit* could be held, *spare* blocks staying free."""
        ...

    def open(self, holding: Holding, hit: Hit) -> None:
        """Let *holding* start from *hit*, which was looked up since the cache last changed."""
        ...

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Have *holding* hold *tokens* tokens in all, at the cost of what is free; all or nothing."""
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
