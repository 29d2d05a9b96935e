"""SGLang's KV cache of one engine: prefixes are shared to the token, and runs of tokens are lost leaf by leaf.

The rules are those of its RadixCache (python/sglang/srt/mem_cache/radix_cache.py) with page_size 1.
"""

from typing import ClassVar

from attrs import define, field

from ksim.flow.request import Request
from ksim.kv_cache.cache import Hit, Holding
from ksim.kv_cache.evictions import Eviction
from ksim.kv_cache.evictions.lru import lru
from ksim.kv_cache.order import EvictionOrder
from ksim.kv_cache.runs import Run, RunTree, agreement


class LockedRun(Run):
    """A run that `locks` requests use; its past is for evictions to look at."""

    __slots__ = ("created", "hits", "last_use", "locks")

    def __init__(self, source: Holding, start: int, end: int, parent: "LockedRun | None", tick: int):
        super().__init__(source, start, end, parent)
        self.locks = 0
        self.created = self.last_use = tick
        self.hits = 0

    @property
    def depth(self) -> int:
        """Tokens from the beginning of the prompt to its end."""
        return self.end


@define
class Slots:
    """Room for `capacity` tokens: `empty`, cached and `evictable` as nobody uses them, or used."""

    capacity: int
    empty: int
    evictable: int = 0

    @property
    def free(self) -> int:
        return self.empty + self.evictable

    @property
    def used(self) -> int:
        return self.capacity - self.free


@define
class SglangCache:
    """`capacity` tokens; without `prefix_caching`, nothing is ever found again.

    Tokens enter the tree when a chunk of a prompt is computed, and when the
    request has finished; where equal ones are there already, the request uses
    those and gives its own back.  What a request uses is locked, up to the
    root.  Of the rest the leaves are lost first, by `eviction`.
    """

    capacity: int
    prefix_caching: bool = True
    eviction: Eviction = lru
    pool: Slots = field(init=False)
    tree: RunTree[LockedRun] = field(init=False)  # its root is locked for ever
    _leaves: EvictionOrder[LockedRun] = field(init=False)
    _tick: int = field(default=0, init=False)

    block_tokens: ClassVar[int] = 1
    enters_computed: ClassVar[bool] = True

    def __attrs_post_init__(self) -> None:
        self.pool = Slots(self.capacity, self.capacity)
        self.tree = RunTree(LockedRun(Holding(), 0, 0, None, 0))
        self.tree.root.locks = 1
        self._leaves = EvictionOrder(self.eviction)

    def holding(self, request: Request) -> Holding:
        """What *request* holds at first: nothing."""
        return Holding(request.chunks, request.chunk_tokens, request.named)

    def blocks(self, tokens: int) -> int:
        """How many blocks hold *tokens* tokens: as many."""
        return tokens

    def lookup(self, holding: Holding, known: int) -> Hit:
        """What is cached of the first *known* - 1 tokens.  Changes nothing, not even when they were last used."""
        if not self.prefix_caching:
            return Hit(0)
        tokens, node = self.tree.match(holding, known - 1)
        return Hit(tokens, (node,) if tokens else ())

    def fits(self, hit: Hit, tokens: int, spare: int = 0) -> bool:
        """Whether *tokens* tokens that begin with *hit* could be held, *spare* slots staying free."""
        return tokens - hit.tokens + _unused(hit) + spare <= self.pool.free

    def open(self, holding: Holding, hit: Hit) -> None:
        """Let *holding* start from *hit*; a run in which it ends is split."""
        assert holding.node is None, "a request that holds tokens was admitted again"
        self._tick += 1
        node = hit.nodes[-1] if hit.nodes else self.tree.root
        if hit.tokens < node.end:
            node = self._split(node, hit.tokens)
        holding.node, holding.tokens, holding.entered = node, hit.tokens, hit.tokens
        while node.parent is not None:
            self._lock(node)
            node.last_use = self._tick
            node.hits += 1
            node = node.parent

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Have *holding* hold *tokens* tokens in all, at the cost of what nobody uses; all or nothing."""
        missing = tokens - holding.tokens
        if missing <= 0:
            return True
        if not self.take(missing):
            return False
        holding.tokens = tokens
        return True

    def take(self, blocks: int) -> bool:
        """Take *blocks* slots for holdings that `settle` names; all or nothing."""
        if blocks > self.pool.free:
            return False
        while self.pool.empty < blocks:
            self._evict()
        self.pool.empty -= blocks
        return True

    def settle(self, holding: Holding, tokens: int) -> None:
        """Let *holding* hold *tokens* tokens in all, in slots that `take` took."""
        holding.tokens = max(holding.tokens, tokens)

    def enter(self, holding: Holding, tokens: int) -> None:
        """Do nothing: tokens can be found only when they are computed."""

    def quiet(self, holding: Holding) -> bool:
        """Never: what is computed others can find."""
        return False

    def computed(self, holding: Holding, tokens: int) -> None:
        """Make the first *tokens* tokens of *holding* findable; use those that are there already."""
        if not self.prefix_caching or tokens <= holding.entered:
            return
        self._tick += 1
        node = holding.node
        while holding.entered < tokens:
            node = self._follow(node, holding, tokens)
            self._lock(node)
            holding.entered = node.end
        holding.node = node
        while node.parent is not None:
            node.last_use = self._tick
            node = node.parent

    def close(self, holding: Holding, tokens: int = 0) -> None:
        """Give back all that *holding* holds; *tokens* were computed by a request that is finished."""
        self.computed(holding, tokens)
        self.pool.empty += holding.tokens - holding.entered
        node = holding.node
        while node is not None and node.parent is not None:
            self._unlock(node)
            node = node.parent
        holding.node, holding.tokens, holding.entered = None, 0, 0

    def steps_until_event(self, holding: Holding, tokens: int, ahead: bool) -> int:
        """How many steps of one token each, on top of *tokens*, need no slot."""
        return holding.tokens - tokens

    def _follow(self, node: LockedRun, holding: Holding, end: int) -> LockedRun:
        """Go on from *node* with the tokens of *holding* up to *end*, as far as the tree has them, or append them."""
        place = node.end
        child = self.tree.child(node, holding, place)
        if child is None:
            self.pool.evictable += end - place  # till it is locked
            return self.tree.append(LockedRun(holding, place, end, node, self._tick))
        same = agreement(child.source, holding, place, min(child.end, end))
        self.pool.empty += same
        return child if place + same == child.end else self._split(child, place + same)

    def _split(self, node: LockedRun, place: int) -> LockedRun:
        """Cut *node* at *place*; return the first part, which is used and was hit as the whole was."""
        first = LockedRun(node.source, node.start, place, node.parent, self._tick)
        first.locks, first.hits = node.locks, node.hits
        return self.tree.split(node, first)

    def _lock(self, node: LockedRun) -> None:
        if node.locks == 0:
            self.pool.evictable -= node.tokens
            self._leaves.discard(node)
        node.locks += 1

    def _unlock(self, node: LockedRun) -> None:
        node.locks -= 1
        if node.locks == 0:
            self.pool.evictable += node.tokens
            self._offer(node)

    def _offer(self, node: LockedRun) -> None:
        """Let *node* be evicted, if it is an unlocked leaf."""
        if node.locks == 0 and not node.children:
            self._leaves.add(node, node)

    def _evict(self) -> None:
        leaf = self._leaves.pop()
        assert not leaf.locks, "what is in use cannot be dropped"
        self.pool.evictable -= leaf.tokens
        self.pool.empty += leaf.tokens
        self._offer(self.tree.remove(leaf))


def _unused(hit: Hit) -> int:
    """How many tokens of *hit* nobody uses."""
    if not hit.nodes:
        return 0
    node, end = hit.nodes[-1], hit.tokens
    while node.locks == 0:
        node = node.parent
    return int(end - min(end, node.end))
