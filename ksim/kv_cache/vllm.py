"""vLLM's KV cache of one engine, counted in runs of blocks: who holds how many, and what others can find.

It decides as the one block by block does (kv_cache.py), at a cost that grows
with the requests and the runs that they share, not with their blocks.
"""

from typing import ClassVar

from attrs import define, field

from ksim.flow.request import Request
from ksim.kv_cache.cache import Hit, Holding
from ksim.kv_cache.extents import Extent, ExtentPool, HeldRun
from ksim.kv_cache.runs import RunTree, agreement


@define(eq=False)
class VllmCache:
    """`capacity` blocks of `block_tokens` tokens; without `prefix_caching`, nothing is ever found again.

    Places in the tree are tokens, and whole blocks.  What only its own request
    could find enters the tree when that gives it back.  Without `plain_first`,
    as in older releases, blocks that hold nothing findable wait behind all that
    are free, like the others.
    """

    capacity: int
    block_tokens: int
    prefix_caching: bool = True
    plain_first: bool = True
    pool: ExtentPool = field(init=False)
    tree: RunTree[HeldRun] = field(init=False)

    enters_computed: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        self.pool = ExtentPool(self.capacity)
        self.tree = RunTree(HeldRun(Holding(), 0, 0, None))

    def holding(self, request: Request) -> Holding:
        """What *request* holds at first: nothing.  Its names stand for whole blocks."""
        if not request.chunks:
            return Holding()
        size = self.block_tokens
        if request.chunk_tokens % size:
            return Holding(request.content(size), size)
        return Holding(request.chunks, request.chunk_tokens, request.named // size * size)

    def blocks(self, tokens: int) -> int:
        """How many blocks hold *tokens* tokens."""
        return -(-tokens // self.block_tokens)

    def lookup(self, holding: Holding, known: int) -> Hit:
        """The cached blocks from which a request of *known* tokens can start.  Changes nothing that can be found.

        The last known token is always computed again: its logits are what is sampled from.
        """
        if not self.prefix_caching:
            return Hit(0)
        self._forget()
        if holding.node is not None:
            self._record(holding, holding.entered)
        place, node = self.tree.match(holding, (known - 1) // self.block_tokens * self.block_tokens)
        return Hit(place, (node,), self._unused(node, place)) if place else Hit(0)

    def fits(self, hit: Hit, tokens: int, spare: int = 0) -> bool:
        """Whether *tokens* tokens that begin with *hit* could be held, *spare* blocks staying free."""
        return self.blocks(tokens - hit.tokens) + hit.unused + spare <= self.pool.free

    def open(self, holding: Holding, hit: Hit) -> None:
        """Let *holding* start from *hit*; a run in which it ends is split."""
        assert holding.node is None, "a request that holds blocks was admitted again"
        assert not holding.content or holding.unit % self.block_tokens == 0, "names do not stand for whole blocks"
        node = hit.nodes[0] if hit.nodes else self.tree.root
        if hit.tokens < node.end:
            node = self._split(node, hit.tokens)
        holding.node, holding.tokens, holding.entered = node, hit.tokens, hit.tokens
        while node.parent is not None:
            extent = node.copies[0]
            if not extent.users:
                self.pool.revive(extent, node.tokens // self.block_tokens)
            extent.users.add(holding)
            node = node.parent

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Have *holding* hold *tokens* tokens in all, at the cost of what is free; all or nothing."""
        missing = tokens - holding.tokens
        if missing <= 0:
            return True
        blocks = -(-missing // self.block_tokens)
        if not self.pool.take(blocks):
            return False
        holding.tokens += blocks * self.block_tokens
        return True

    def take(self, blocks: int) -> bool:
        """Take *blocks* blocks for holdings that `settle` names; all or nothing."""
        return self.pool.take(blocks)

    def settle(self, holding: Holding, tokens: int) -> None:
        """Let *holding* hold *tokens* tokens in all, in blocks that `take` took."""
        holding.tokens = max(holding.tokens, self.blocks(tokens) * self.block_tokens)

    def quiet(self, holding: Holding) -> bool:
        """Whether nobody else could find what *holding* enters from now on, so that may wait."""
        return holding.entered >= holding.named or not self.prefix_caching

    def enter(self, holding: Holding, tokens: int) -> None:
        """Make the full blocks among the first *tokens* tokens of *holding* findable."""
        full = tokens - tokens % self.block_tokens
        if full <= holding.entered or not self.prefix_caching:
            return
        assert full <= holding.tokens, "a request without blocks cannot share them"
        if holding.entered < holding.named:
            self._record(holding, min(full, holding.named))
        holding.entered = full

    def computed(self, holding: Holding, tokens: int) -> None:
        """Do nothing: blocks can be found from the moment they are scheduled."""

    def close(self, holding: Holding, tokens: int = 0) -> None:
        """Give back all that *holding* holds, last block first; one that is finished computed *tokens* tokens."""
        if tokens:
            self.enter(holding, tokens)
        if holding.node is None:
            return
        self._forget()
        self._record(holding, holding.entered)
        self._give_back_plain(holding.tokens - holding.entered)
        node = holding.node
        while node.parent is not None:
            extent = node.held_by(holding)
            extent.users.remove(holding)
            if not extent.users:
                self.pool.to_back(extent, node.tokens // self.block_tokens)
            node = node.parent
        holding.node, holding.tokens, holding.entered = None, 0, 0

    def steps_until_event(self, holding: Holding, tokens: int, ahead: bool) -> int:
        """How many steps of one token each, on top of *tokens*, need no block and fill none."""
        event = holding.tokens - tokens
        if self.prefix_caching:  # a block is entered when its last token is known: with `ahead`, a step later
            fills = holding.entered + self.block_tokens - tokens - 1 + ahead
            event = min(event, max(fills, 0))
        return event

    def _record(self, holding: Holding, end: int) -> None:
        """Have the tree know the tokens of *holding* up to *end*, each in the blocks that it holds."""
        node: HeldRun = holding.node
        while node.end < end:
            child = self.tree.child(node, holding, node.end)
            node = self._append(node, holding, end) if child is None else self._copy(child, holding, end)
        holding.node = node

    def _append(self, node: HeldRun, holding: Holding, end: int) -> HeldRun:
        """Have the tokens of *holding* up to *end* follow *node*, or be part of it if nobody else uses that."""
        if len(node.copies) == 1 and len(node.copies[0].users) == 1 and not node.children:
            node.source, node.end = holding, end
            return node
        run = self.tree.append(HeldRun(holding, node.end, end, node))
        run.copies.append(Extent(run, {holding}))
        return run

    def _copy(self, node: HeldRun, holding: Holding, end: int) -> HeldRun:
        """Note that *holding* has computed *node* too, as far as its tokens up to *end* are the same."""
        place = node.start + agreement(node.source, holding, node.start, min(node.end, end))
        if place < node.end:
            node = self._split(node, place)
        node.copies.append(Extent(node, {holding}))
        return node

    def _split(self, node: HeldRun, place: int) -> HeldRun:
        """Cut *node* at *place*; return the first part."""
        return self.tree.split(node, node.part(place))

    def _unused(self, node: HeldRun, end: int) -> int:
        """How many blocks up to place *end*, which is in *node*, nobody uses."""
        tokens = 0
        while node.parent is not None:
            if not node.copies[0].users:
                tokens += end - node.start
            node, end = node.parent, node.start
        return tokens // self.block_tokens

    def _give_back_plain(self, tokens: int) -> None:
        """Give back the blocks of *tokens* tokens that hold nothing findable."""
        if not tokens:
            return
        blocks = tokens // self.block_tokens
        if self.plain_first or not self.prefix_caching:
            self.pool.to_front(blocks)
        else:  # in their place in the queue they are the tokens of nobody
            run = self.tree.append(HeldRun(Holding(), 0, tokens, self.tree.root))
            run.copies.append(Extent(run, set()))
            self.pool.to_back(run.copies[0], blocks)

    def _forget(self) -> None:
        """Drop from the tree what was in the blocks that have been taken."""
        pool = self.pool
        tokens = pool.owed * self.block_tokens
        pool.owed = 0
        while tokens:
            extent = pool.first
            run = extent.run
            lost = min(run.tokens, tokens)
            if lost < run.tokens and len(run.copies) > 1:
                self._split(run, run.end - lost)
            if len(run.copies) > 1:
                run.copies.remove(extent)
                extent.leave()
            elif lost < run.tokens:
                run.end -= lost
            else:
                self.tree.remove(run)
                extent.leave()
                run.copies.clear()  # no collector looks for what refers to each other while a run goes on
            tokens -= lost
