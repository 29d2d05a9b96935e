"""SGLang's radix cache of an engine with sliding windows: layers that see a window have slots in a pool of their own.

The rules are those of UnifiedRadixCache with a component for windows (SGLang 0.5.23,
srt/mem_cache/unified_cache/components/swa.py, srt/mem_cache/common.py and allocator/swa.py).  A token has a slot in
each pool.  Those of the window layers are freed where the window has passed: of a request, and of nodes that nobody
needs.  A prefix is found only if a whole window before its end has both.
"""

from collections.abc import Iterator
from typing import ClassVar, cast

from attrs import define, field

from ksim.flow.request import Request
from ksim.kv.cache import BlockTable, PrefixHit
from ksim.kv.cache.radix import RadixCache
from ksim.kv.cache.sglang import LockedNode, SlotPool

__all__ = ["WindowRadixCache", "WindowTable"]


@define(eq=False)
class WindowTable(BlockTable):
    """The slots of its first `slid` tokens in the window layers have been freed, as far as they were its own.

    Its first `branch` tokens are in the tree without a window: they enter it first, and alone.  `mark` is where its
    lock on a window begins; None is the beginning of the prompt.  It has been prefilled up to so many `prefilled`
    tokens, in so many `chunks`.
    """

    slid: int = 0
    branch: int = 0
    mark: object = None
    prefilled: int = 0
    chunks: int = 0


class WindowNode(LockedNode):
    """A node that may be `live`, with slots in the window layers, of which `window_locks` requests need some.

    `mark` names the beginning of windows that end in a node below.  Live nodes are in a list from the `newer` to the
    `older` used.
    """

    __slots__ = ("live", "mark", "newer", "older", "window_locks")

    newer: "WindowNode | None"
    older: "WindowNode | None"

    def __init__(self, source: BlockTable, start: int, end: int, parent: "LockedNode | None", tick: int):
        super().__init__(source, start, end, parent, tick)
        self.live, self.window_locks = False, 0
        self.mark: object = None
        self.newer = self.older = None


class UseOrder:
    """Live nodes by their latest use."""

    __slots__ = ("ends",)

    def __init__(self) -> None:
        self.ends = WindowNode(BlockTable(), 0, 0, None, 0)
        self.ends.newer = self.ends.older = self.ends

    def put(self, node: WindowNode, newer: WindowNode | None = None) -> None:
        """Put *node* behind the *newer* one, or before all."""
        before = newer or self.ends
        after = cast(WindowNode, before.older)
        node.newer, node.older = before, after
        before.older = after.newer = node

    def remove(self, node: WindowNode) -> None:
        newer, older = cast(WindowNode, node.newer), cast(WindowNode, node.older)
        newer.older, older.newer = older, newer
        node.newer = node.older = None

    def unlocked(self, node: WindowNode | None = None) -> WindowNode | None:
        """The oldest node, newer than *node*, that nobody locks."""
        found = cast(WindowNode, (node or self.ends).newer)
        while found.window_locks:
            found = cast(WindowNode, found.newer)
        return None if found is self.ends else found


@define(eq=False)
class WindowRadixCache(RadixCache):
    """A cache with `window_capacity` pages for layers that see the latest `window` tokens."""

    window: int = field(kw_only=True)
    window_capacity: int = field(kw_only=True)
    window_pool: SlotPool = field(init=False)
    _order: UseOrder = field(factory=UseOrder, init=False)
    _live: int = field(default=0, init=False)  # pages of the tree in the window layers

    _node: ClassVar[type[LockedNode]] = WindowNode

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.window_pool = SlotPool(self.window_capacity, self.window_capacity)

    # What others may ask, which changes nothing.

    def block_table(self, request: Request) -> WindowTable:
        table = super().block_table(request)
        return WindowTable(table.content, table.tokens_per_name, table.named_tokens)

    def free_window_tokens(self) -> int:
        """Tokens for which the window layers have room without an eviction."""
        return self.window_pool.empty * self.block_tokens

    def evictable_window_tokens(self) -> int:
        """Cached tokens of the window layers that nobody needs."""
        return self.window_pool.evictable * self.block_tokens

    def cached_window_tokens(self) -> int:
        """All cached tokens of the window layers."""
        return self._live * self.block_tokens

    def locked_window(self, node: LockedNode) -> int:
        """How many pages of the window layers become unavailable to others when a window up to *node* is locked."""
        return sum(above.tokens // self.block_tokens for above in self._window(node, self.window)
                   if above.live and not above.window_locks)

    def _window(self, node: LockedNode, tokens: int) -> Iterator[WindowNode]:
        """The nodes that hold so many *tokens* before the end of *node*, from there on."""
        covered = 0
        while node.parent is not None and covered < tokens:
            above = cast(WindowNode, node.parent)
            covered += node.tokens
            yield cast(WindowNode, node)
            node = above

    def find_prefix(self, table: BlockTable, num_tokens: int) -> PrefixHit:
        if not self.prefix_caching:
            return PrefixHit(0)
        tokens, node = self._match(table, num_tokens - 1)
        node = self._usable(node, tokens)
        return PrefixHit(min(node.end, tokens), (node,) if node.end else ())

    def _usable(self, node: LockedNode, end: int) -> LockedNode:
        """The last node before *end*, on the path to *node*, at whose end a whole window is live."""
        path, above = [], node
        while above.parent is not None:
            path.append(cast(WindowNode, above))
            above = above.parent
        usable, covered = above, float("inf")
        for step in reversed(path):
            covered = covered + min(step.end, end) - step.start if step.live else 0
            if step.live and covered >= self.window:
                usable = step
        return usable

    # Admission.

    def look_up(self, table: BlockTable, end: int) -> tuple[int, LockedNode]:
        """The same for a prefix that ends in a window; where the tree has more of *table*, that is noted as a branch.
        """
        asked = cast(WindowTable, table)
        asked.branch = 0
        if not self.prefix_caching or end - self.ahead < self.block_tokens:
            return 0, self.tree.root
        tokens, node = self._match(table, end)
        if tokens < node.end:
            node = self._split(node, tokens)
        usable = self._usable(node, tokens)
        if tokens > usable.end:
            asked.branch = tokens
        self._use_window(usable)
        self._use_path(usable)
        return usable.end, usable

    def _use_window(self, node: LockedNode) -> None:
        """Use the live nodes of a window up to *node*, and of one page before it."""
        newer = None
        for above in self._window(node, self.window + self.block_tokens):
            if above.live:
                self._order.remove(above)
                self._order.put(above, newer)
                newer = above

    def lock(self, table: BlockTable, tokens: int, node: LockedNode) -> None:
        super().lock(table, tokens, node)
        self._lock_window(cast(WindowTable, table), node)

    def _lock_window(self, table: WindowTable, node: LockedNode) -> None:
        covered, table.mark = 0, None
        for above in self._window(node, self.window):
            if above.live and not above.window_locks:
                self.window_pool.evictable -= above.tokens // self.block_tokens
            above.window_locks += 1
            covered += above.tokens
            if covered >= self.window:
                above.mark = above.mark or object()
                table.mark = above.mark

    def _unlock_window(self, table: WindowTable) -> None:
        node: LockedNode | None = table.node
        while node is not None and node.parent is not None:
            above = cast(WindowNode, node)
            above.window_locks -= 1
            if above.live and not above.window_locks:
                self.window_pool.evictable += above.tokens // self.block_tokens
            if table.mark is not None and above.mark is table.mark:
                break
            node = node.parent
        table.mark = None

    # Room.

    def make_room(self, tokens: int) -> bool:
        if self.free_tokens() < tokens or self.free_window_tokens() < tokens:
            self._evict_to(tokens)
        return self.free_tokens() >= tokens and self.free_window_tokens() >= tokens

    def _evict_to(self, tokens: int) -> None:
        super()._evict_to(tokens)
        self._evict_windows(tokens)

    def _evict_windows(self, tokens: int) -> None:
        """Free slots of the window layers until they have room for *tokens* tokens, oldest nodes first.

        A leaf goes altogether.
        """
        node = self._order.unlocked()
        while node is not None and self.free_window_tokens() < tokens:
            newer = self._order.unlocked(node)
            if node.locks == 0 and not node.children:
                self._leaves.discard(node)
                self._evict_leaf(node)
            else:
                self._kill(node)
            node = newer

    def _evict_leaf(self, leaf: LockedNode) -> None:
        if cast(WindowNode, leaf).live:
            self._kill(cast(WindowNode, leaf))
        super()._evict_leaf(leaf)

    def _kill(self, node: WindowNode) -> None:
        """Free the slots of *node*, which nobody needs, in the window layers."""
        pages = node.tokens // self.block_tokens
        self._order.remove(node)
        node.live = False
        self.window_pool.evictable -= pages
        self.window_pool.empty += pages
        self._live -= pages

    def _revive(self, node: LockedNode) -> None:
        """Give *node* slots in the window layers, which a request had."""
        revived, pages = cast(WindowNode, node), node.tokens // self.block_tokens
        revived.live = True
        self._order.put(revived)
        self._live += pages
        if not revived.window_locks:
            self.window_pool.evictable += pages

    def grow(self, table: BlockTable, tokens: int) -> None:
        missing = self.blocks(tokens) - self.blocks(table.num_slots)
        super().grow(table, tokens)
        self._take_window(missing)

    def take(self, pages: int) -> None:
        super().take(pages)
        self._take_window(pages)

    def _take_window(self, pages: int) -> None:
        assert pages <= self.window_pool.empty, "pages of the window layers that were empty are gone"
        self.window_pool.empty -= pages

    def slide(self, table: WindowTable, end: int, interval: int = 1) -> None:
        """Free the slots of *table* in the window layers that are out of the window of the token at *end*.

        Nothing is freed for less than *interval* tokens.  Where prefixes are shared, whole pages of a window stay.
        """
        page, window = self.block_tokens, self.window
        if not table.num_slots or end - window < table.slid + interval:
            return
        table.slid = max(table.slid, table.published)
        kept = -(-max(window, page) // page) * page if self.prefix_caching else window
        reached = max(table.slid, end - kept) // page * page
        if reached > table.slid:
            self.window_pool.empty += (reached - table.slid) // page
            table.slid = reached

    # Publication, and the end of a request.

    def publish_computed(self, table: BlockTable, tokens: int, prompt: int = 0) -> None:
        """Publish the first *tokens* tokens of *table*, which goes on, and free what its window has passed.

        Where it has a branch, only that much is published.
        """
        self._publish(cast(WindowTable, table), tokens - self.ahead, goes_on=True)

    def free(self, table: BlockTable, tokens: int = 0, prompt: int = 0) -> None:
        owner = cast(WindowTable, table)
        if tokens:
            self._publish(owner, tokens - self.ahead, goes_on=False)
        slid = max(0, owner.slid - table.published)
        self.window_pool.empty += self.blocks(table.num_slots) - (table.published + slid) // self.block_tokens
        self._unlock_window(owner)
        super().free(table)
        owner.slid = owner.branch = owner.prefilled = owner.chunks = 0

    def _publish(self, table: WindowTable, end: int, goes_on: bool) -> None:
        if not self.prefix_caching:
            return
        branches = table.published < table.branch <= end
        entering = table.branch if branches else end
        if goes_on:
            self.slide(table, entering - 1)
        if whole := entering // self.block_tokens * self.block_tokens:
            node = self._insert(table, whole, table.published)
            table.entered = max(table.entered, whole)
            self._use_window(node)
            self._unlock_window(table)
            self._lock_path(node)
            self._unlock_path(table.node)
            table.node, table.published = node, whole
            self._lock_window(table, node)
        if branches:
            table.branch = 0
            if goes_on:
                self.slide(table, end - 1)

    def _free_duplicate(self, table: BlockTable, node: LockedNode, start: int) -> None:
        """Free the pages of *table* from *start* on, unless *node* needs their slots in the window layers."""
        if start >= node.end:
            return
        slid, page, end = cast(WindowTable, table).slid, self.block_tokens, node.end
        revives = max(node.start, slid)
        if not cast(WindowNode, node).live and revives < end:
            if revives > node.start:
                self._split(node, revives)
            self._revive(node)
            self.pool.empty += (end - revives) // page  # the slots in full layers of one of them
            end = revives
        self.pool.empty += max(0, end - start) // page
        self.window_pool.empty += max(0, end - max(start, slid)) // page

    def _append(self, table: BlockTable, start: int, end: int, parent: LockedNode) -> LockedNode:
        node = super()._append(table, start, end, parent)
        live = max(start, cast(WindowTable, table).slid)
        if live >= end:
            return node
        if live > start:
            self._split_new(node, live)
        tail = end - -(-self.window // self.block_tokens) * self.block_tokens
        if tail > live:
            self._revive(self._split_new(node, tail))
        self._revive(node)
        return node

    def _split_new(self, node: LockedNode, position: int) -> LockedNode:
        head = self._split(node, position)
        head.hits = 0
        self._queue_leaf(head)
        return head

    def _split(self, node: LockedNode, position: int) -> LockedNode:
        head, tail = cast(WindowNode, super()._split(node, position)), cast(WindowNode, node)
        head.window_locks, head.live = tail.window_locks, tail.live
        head.mark, tail.mark = tail.mark, None
        if head.live:
            self._order.put(head, tail)
        return head
