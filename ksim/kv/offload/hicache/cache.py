"""SGLang's HiCache: a radix tree of which nodes are in GPU memory, in host memory, or in both.

The rules are those of HiRadixCache (python/sglang/srt/mem_cache/hiradix_cache.py) with page_size 1.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, cast

from attrs import define, field

from ksim.flow.request import Request
from ksim.kv.cache import BlockTable, PrefixHit, common_tokens
from ksim.kv.cache.evictions import EvictionQueue
from ksim.kv.cache.sglang import LockedNode, SglangCache

#: How often a node must be inserted until it is written to host memory; None where only an eviction writes it.
WRITE_POLICIES = {"write_through": 1, "write_through_selective": 2, "write_back": None}


class HostNode(LockedNode):
    """A run of tokens that is `resident` in GPU memory, or `backed` by host memory, or both; `uses` counts inserts.

    Host memory keeps it while it is `held`: by reads from storage that continue it, or by its own writes to storage.
    """

    __slots__ = ("backed", "held", "resident", "uses")

    def __init__(self, source: BlockTable, start: int, end: int, parent: "HostNode | None", tick: int):
        super().__init__(source, start, end, parent, tick)
        self.resident, self.backed, self.uses, self.held = True, False, 0, 0


@define(eq=False)
class PromptTable(BlockTable):
    """A block table that knows its `request`."""

    request: Request | None = None

    @property
    def prompt(self) -> int:
        return self.request.prompt if self.request else 0


@define(eq=False)
class HiCache(SglangCache):
    """Keeps up to `host_capacity` tokens in host memory, which it writes as `write_policy` says.

    `writes` lists what is written since somebody took the list: nodes, how many tokens they had, and whether the GPU
    needs their room at once.  Other nodes that are written stay in GPU memory until then.
    """

    host_capacity: int = field(kw_only=True)
    write_policy: str = field(default="write_through", kw_only=True)
    writes: list[tuple[HostNode, int, bool]] = field(factory=list, init=False)
    host_free: int = field(init=False)
    _host_leaves: EvictionQueue[HostNode] = field(init=False)
    _wanted: set[HostNode] = field(factory=set, init=False)  # by the request that is being admitted
    _revived: set[HostNode] = field(factory=set, init=False)  # by the insert that is being made

    node_class: ClassVar[type[LockedNode]] = HostNode

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.host_free = self.host_capacity
        self._host_leaves = EvictionQueue(self.eviction)

    def block_table(self, request: Request) -> BlockTable:
        return PromptTable(request.chunks, request.chunk_tokens, request.named, request=request)

    def find_prefix(self, table: BlockTable, num_tokens: int) -> PrefixHit:
        """The longest prefix in GPU memory."""
        hit = super().find_prefix(table, num_tokens)
        if not hit.nodes:
            return hit
        node: Any = hit.nodes[-1]
        while not node.resident:
            node = node.parent
        tokens = min(hit.tokens, node.end)
        return PrefixHit(tokens, (node,) if tokens else ())

    def host_tokens(self, table: BlockTable, num_tokens: int, cached: int) -> int:
        """How many tokens of the first *num_tokens* - 1, beyond the first *cached* ones, host memory has."""
        tokens = self.tree.match(table, num_tokens - 1)[0] if self.prefix_caching else 0
        return max(0, tokens - cached)

    def want(self, table: BlockTable, num_tokens: int) -> None:
        """Keep what host memory has of the first *num_tokens* tokens until the next request asks."""
        node: Any = self.tree.match(table, num_tokens - 1)[1]
        self._wanted.clear()
        while node.parent is not None:
            self._wanted.add(node)
            node = node.parent

    def load(self, table: BlockTable, tokens: int) -> None:
        """Bring back what host memory has of the first *tokens* tokens of *table*, into its slots."""
        SglangCache.publish_computed(self, table, tokens)
        self._revived.clear()

    def continued_by_storage(self, table: BlockTable, num_tokens: int) -> tuple[int, HostNode] | None:
        """How many of the first *num_tokens* - 1 tokens are in some memory, and their last node.

        None if what the GPU has of them is not in host memory: storage cannot continue that.
        """
        tokens, node = self.tree.match(table, num_tokens - 1)
        last: Any = node
        while not last.resident:
            last = last.parent
        return (tokens, cast("HostNode", node)) if last is self.tree.root or last.backed else None

    def take_host_room(self, tokens: int, page: int, least: int) -> int:
        """Set aside host memory for *tokens* tokens, or for as many pages as possible; for none if under *least*."""
        self._make_host_room(tokens)
        tokens = min(tokens, self.host_free // page * page)
        taken = tokens if tokens >= least else 0
        self.host_free -= taken
        return taken

    def add_from_storage(self, table: BlockTable, start: int, end: int) -> int:
        """Keep the tokens of *table* from *start* up to *end* in host memory, for which room was set aside.

        Return how many it had not; none if those before them are gone.
        """
        tokens, node = self.tree.match(table, end)
        if not start <= tokens < end:
            return 0
        parent = cast("HostNode", self._split(node, tokens) if tokens < node.end else node)
        child = HostNode(table, tokens, end, parent, self._tick)
        child.resident, child.backed = False, True
        self._host_leaves.discard(parent)
        self.tree.append(child)
        self._host_leaves.add(child, child)
        return end - tokens

    # Inserts.

    def publish_computed(self, table: BlockTable, tokens: int) -> None:
        super().publish_computed(table, tokens)
        if tokens and tokens >= cast("PromptTable", table).prompt:  # chunks before the last do not count
            self._count_use(table)
        self._revived.clear()

    def _count_use(self, table: BlockTable) -> None:
        """Count the insert of *table*, from the root on, and write what was inserted often enough."""
        threshold = WRITE_POLICIES[self.write_policy]
        if threshold is None or not self.prefix_caching:
            return
        for node in reversed([*_path(table.node)]):
            if node not in self._revived:
                node.uses += 1
                if not node.backed and node.uses >= threshold and self._is_backed(node.parent):
                    self._write(node, at_once=False)

    def _is_backed(self, parent: Any) -> bool:
        return parent is self.tree.root or bool(parent.backed)

    def _next_node(self, node: LockedNode, table: BlockTable, end: int) -> LockedNode:
        position = node.end
        child = cast("HostNode | None", self.tree.child(node, table, position))
        if child is None or child.resident:
            return super()._next_node(node, table, end)
        agreed = position + common_tokens(child.source, table, position, min(child.end, end))
        head = child if agreed == child.end else cast("HostNode", self._split(child, agreed))
        self._host_leaves.discard(head)
        head.resident = True
        self._revived.add(head)
        self.pool.evictable += head.tokens  # until it is locked
        return head

    def _split(self, node: LockedNode, position: int) -> LockedNode:
        head, rest = cast("HostNode", super()._split(node, position)), cast("HostNode", node)
        head.resident, head.backed, head.uses = rest.resident, rest.backed, rest.uses
        return head

    # Writes and evictions.

    def _write(self, node: HostNode, at_once: bool) -> bool:
        """Write *node* to host memory, if there is room; until it is written, it and those before it stay."""
        if not self._make_host_room(node.tokens):
            return False
        self.host_free -= node.tokens
        node.backed = True
        self.writes.append((node, node.tokens, at_once))
        if not at_once:
            for locked in _path(node):
                self._lock(locked)
        return True

    def written(self, node: HostNode) -> None:
        """The write of *node*, which was not to be at once, has ended."""
        for locked in _path(node):
            self._unlock(locked)

    def _queue_leaf(self, node: LockedNode) -> None:
        node = cast("HostNode", node)
        if node.locks == 0 and node.resident and not any(child.resident for child in _children(node)):
            self._leaves.add(node, node)

    def _evict(self) -> None:
        leaf = cast("HostNode", self._leaves.pop())
        if not leaf.backed and (self.write_policy != "write_back" or not self._write(leaf, at_once=True)):
            self._drop_host_children(leaf)
        leaf.resident = False
        self.pool.evictable -= leaf.tokens
        self.pool.empty += leaf.tokens
        parent = leaf.parent
        if not leaf.backed:
            self.tree.remove(leaf)
        elif not leaf.children:
            self._host_leaves.add(leaf, leaf)
        self._queue_leaf(cast("HostNode", parent))

    def _make_host_room(self, tokens: int) -> bool:
        """Evict from host memory what GPU memory has not, whole leaves, until *tokens* tokens have room there."""
        kept: list[HostNode] = []
        while self.host_free < tokens and len(self._host_leaves):
            leaf = self._host_leaves.pop()
            if leaf.held or leaf in self._wanted:
                kept.append(leaf)
            else:
                self._drop_host_leaf(leaf)
        for leaf in kept:
            self._host_leaves.add(leaf, leaf)
        return self.host_free >= tokens

    def _drop_host_leaf(self, leaf: HostNode) -> None:
        self.host_free += leaf.tokens
        parent: Any = self.tree.remove(leaf)
        if parent.parent is not None and not parent.resident and not parent.children:
            self._host_leaves.add(parent, parent)

    def _drop_host_children(self, node: HostNode) -> None:
        """Forget what follows *node*, which host memory has and *node* not."""
        for child in [*_children(node)]:
            self._drop_host_children(child)
            self._host_leaves.discard(child)
            self.host_free += child.tokens
            self.tree.remove(child)


def _path(node: Any) -> Iterator[HostNode]:
    """The nodes from *node* up to the root, without the root."""
    while node is not None and node.parent is not None:
        yield node
        node = node.parent


def _children(node: HostNode) -> list[HostNode]:
    return cast("list[HostNode]", [*node.children.values()])
