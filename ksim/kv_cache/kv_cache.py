"""vLLM's KV cache of one engine, block by block: who holds which, and which of them others can use."""

from collections import deque
from typing import ClassVar, cast

from attrs import define, field

from ksim.flow.request import Request
from ksim.kv_cache.blocks import BlockPool
from ksim.kv_cache.cache import Hit, Holding
from ksim.kv_cache.evictions import Eviction
from ksim.kv_cache.radix import PrefixTree, TrackedNode
from ksim.kv_cache.ranked import RankedPool

__all__ = ["Holding", "KVCache"]


@define
class KVCache:
    """`capacity` blocks of `block_tokens` tokens; without `prefix_caching`, nothing is ever found again.

    Free blocks are lost in vLLM's order, or in that of an `eviction`.  Without
    one, VllmCache decides the same and is faster; this cache is what it is held
    to.  Without `plain_first`, as in older releases, blocks that hold nothing
    findable wait behind all that are free, like the others; an `eviction` takes
    them first in every release, for it has no key for them.
    """

    capacity: int
    block_tokens: int
    prefix_caching: bool = True
    eviction: Eviction | None = None
    plain_first: bool = True
    pool: BlockPool = field(init=False)
    tree: PrefixTree = field(init=False)
    _taken: deque[int] = field(factory=deque, init=False)
    _tick: int = field(default=0, init=False)

    enters_computed: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        if self.eviction is None:
            self.tree = PrefixTree(self.capacity)
            self.pool = BlockPool(self.capacity)
        else:
            self.tree = PrefixTree(self.capacity, TrackedNode)
            self.pool = RankedPool(self.capacity, self.eviction, self._tracked)

    def holding(self, request: Request) -> Holding:
        """What *request* holds at first: nothing."""
        return Holding(request.content(self.block_tokens))

    def blocks(self, tokens: int) -> int:
        """How many blocks hold *tokens* tokens."""
        return -(-tokens // self.block_tokens)

    def lookup(self, holding: Holding, known: int) -> Hit:
        """The cached blocks from which a request of *known* tokens can start.  Changes nothing.

        The last known token is always computed again: its logits are what is sampled from.
        """
        if not self.prefix_caching:
            return Hit(0)
        nodes = self.tree.match(holding.names(0, (known - 1) // self.block_tokens))
        return Hit(len(nodes) * self.block_tokens, nodes)

    def fits(self, hit: Hit, tokens: int, spare: int = 0) -> bool:
        """Whether *tokens* tokens that begin with *hit* could be held, *spare* blocks staying free."""
        users = self.pool.users
        revived: int = sum(users[node.blocks[0]] == 0 for node in hit.nodes)
        return self.blocks(tokens) - len(hit.nodes) + revived + spare <= self.pool.free

    def open(self, holding: Holding, hit: Hit) -> None:
        """Let *holding* start from *hit*."""
        assert not holding.blocks, "a request that holds blocks was admitted again"
        holding.blocks = [node.blocks[0] for node in hit.nodes]
        for block in holding.blocks:
            self.pool.share(block)
        holding.entered = len(hit.nodes)
        holding.node = hit.nodes[-1] if hit.nodes else self.tree.root
        if self.eviction is not None:
            self._touch(holding, 0)
            for node in hit.nodes:
                node.hits += 1

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Have *holding* hold *tokens* tokens in all, at the cost of what is free; all or nothing."""
        missing = self.blocks(tokens) - len(holding.blocks)
        if missing > self.pool.free:
            return False
        for _ in range(missing):
            block = self.pool.take()
            self.tree.forget(block)
            holding.blocks.append(block)
        return True

    def take(self, blocks: int) -> bool:
        """Take *blocks* blocks for holdings that `settle` names; all or nothing."""
        taken = Holding()
        if not self.grow(taken, blocks * self.block_tokens):
            return False
        self._taken += taken.blocks
        return True

    def settle(self, holding: Holding, tokens: int) -> None:
        """Let *holding* hold *tokens* tokens in all, in blocks that `take` took."""
        missing = self.blocks(tokens) - len(holding.blocks)
        holding.blocks += [self._taken.popleft() for _ in range(missing)]

    def quiet(self, holding: Holding) -> bool:
        """Never: each block is entered when it is full."""
        return False

    def enter(self, holding: Holding, tokens: int) -> None:
        """Make the full blocks among the first *tokens* tokens of *holding* findable."""
        if not self.prefix_caching:
            return
        first, full, node = holding.entered, tokens // self.block_tokens, holding.node
        if full <= first:
            return
        assert node is not None, "a request without blocks cannot share them"
        for block, name in zip(holding.blocks[first:full], holding.names(first, full), strict=True):
            node = self.tree.enter(node, name, block)
        holding.entered, holding.node = full, node
        if self.eviction is not None:
            self._touch(holding, first, entered=True)

    def computed(self, holding: Holding, tokens: int) -> None:
        """Do nothing: blocks can be found from the moment they are scheduled."""

    def close(self, holding: Holding, tokens: int = 0) -> None:
        """Give back all that *holding* holds, last block first; one that is finished computed *tokens* tokens."""
        if tokens:
            self.enter(holding, tokens)
        if self.eviction is not None and holding.blocks:
            self._touch(holding, 0)
        plain_first = self.plain_first or self.eviction is not None  # which has no key for what cannot be found
        front: list[int] = []
        back: list[int] = []
        for block in reversed(holding.blocks):
            if self.pool.leave(block):
                (front if plain_first and not self.tree.holds(block) else back).append(block)
        self.pool.to_front(front)
        self.pool.to_back(back)
        holding.blocks = []
        holding.entered = 0
        holding.node = None

    def steps_until_event(self, holding: Holding, tokens: int, ahead: bool) -> int:
        """How many steps of one token each, on top of *tokens*, need no block and fill none."""
        event = len(holding.blocks) * self.block_tokens - tokens
        if self.prefix_caching:  # a block is entered when its last token is known: with `ahead`, a step later
            fills = (holding.entered + 1) * self.block_tokens - tokens - 1 + ahead
            event = min(event, max(fills, 0))
        return event

    def _tracked(self, block: int) -> TrackedNode:
        return cast("TrackedNode", self.tree.node(block))

    def _touch(self, holding: Holding, first: int, entered: bool = False) -> None:
        """Note the use of the blocks of *holding* that are in the tree, from number *first* on."""
        self._tick += 1
        node = holding.node
        for number in range(holding.entered, first, -1):
            node.touch(self._tick, number * self.block_tokens, fresh=entered and len(node.blocks) == 1)
            node = node.parent
