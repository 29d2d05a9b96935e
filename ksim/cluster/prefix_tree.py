"""What a router believes that engines have cached, by the prompts that it sent them: a radix tree that they share.

The rules are those of SGLang's gateway (sgl-model-gateway, policies/tree.rs), which counts characters where this one
counts tokens: a text is the keys of its chunks and, at its end, tokens that are nobody else's.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Optional

from attrs import define, field

#: One match in so many dates what it found: the gateway does not want to lock a node each time.
DATED = 8


@define(eq=False)
class Node:
    """Chunks after those of its `parent`, `tokens` in all; `used` says which engines have them, and since when unused.

    `maker` is the engine that a match ends at, as long as it has the node.
    """

    keys: Sequence[int]
    tokens: int
    maker: int
    parent: Optional["Node"]
    used: dict[int, int] = field(factory=dict)
    children: dict[int, "Node"] = field(factory=dict)

    def is_last_of(self, engine: int) -> bool:
        """Whether *engine* has the node, and nothing that goes on from it."""
        return engine in self.used and not any(engine in child.used for child in self.children.values())


@define
class PrefixTree:
    """Texts, and the engines that they were sent to; `sizes` counts the tokens of each engine."""

    sizes: dict[int, int] = field(factory=dict)
    _root: Node = field(factory=lambda: Node((), 0, -1, None))
    _epoch: int = 0
    _tails: int = 0

    def match(self, keys: Sequence[int]) -> tuple[int, int]:
        """How many of the first *keys* are in the tree, and an engine that has these; -1 if none has."""
        node, matched = self._root, 0
        while matched < len(keys) and (child := node.children.get(keys[matched])):
            shared = _shared(child.keys, keys, matched)
            node, matched = child, matched + shared
            if shared < len(child.keys):
                break
        if node.maker not in node.used:
            node.maker = next(iter(node.used), -1)
        self._epoch += 1
        if self._epoch % DATED == 0 and node.maker >= 0:
            node.used[node.maker] = self._epoch
        return matched, node.maker

    def insert(self, keys: Sequence[int], each: int, tail: int, engine: int) -> None:
        """Note that *engine* was sent the chunks *keys* of so many tokens *each*, and a *tail* that nobody knows."""
        self.sizes.setdefault(engine, 0)
        self._root.used.setdefault(engine, 0)
        self._epoch += 1
        node, done = self._root, 0
        while done < len(keys) and (child := node.children.get(keys[done])):
            shared = _shared(child.keys, keys, done)
            node = child if shared == len(child.keys) else self._split(child, shared)
            self._enlist(node, engine, 0)
            done += shared
        for rest, tokens in ((keys[done:], len(keys[done:]) * each), (self._tail(), tail)):
            if tokens:
                node.children[rest[0]] = node = Node(rest, tokens, engine, node)
                self._enlist(node, engine, self._epoch)
        if node is not self._root:
            node.used[engine] = self._epoch

    def evict(self, most: int) -> None:
        """Take from engines with more than *most* tokens what they have at the ends of the tree, longest unused first.
        """
        if max(self.sizes.values(), default=0) <= most:
            return
        leaves, tickets = list[tuple[int, int, int, Node]](), count()
        for node in self._nodes():
            for engine in node.used:
                if self.sizes[engine] > most and node.is_last_of(engine):
                    heappush(leaves, (node.used[engine], next(tickets), engine, node))
        while leaves:
            _, _, engine, node = heappop(leaves)
            if self.sizes[engine] > most and (parent := node.parent):
                self._remove(node, parent, engine)
                if parent.is_last_of(engine):
                    heappush(leaves, (parent.used[engine], next(tickets), engine, parent))

    def _remove(self, node: Node, parent: Node, engine: int) -> None:
        """Take *node*, a child of *parent*, from *engine*."""
        self.sizes[engine] -= node.tokens
        del node.used[engine]
        if not node.used:
            del parent.children[node.keys[0]]

    def _nodes(self) -> Iterator[Node]:
        left = [self._root]
        while left:
            node = left.pop()
            left += node.children.values()
            yield node

    def _tail(self) -> tuple[int]:
        """The key of tokens that nobody else has."""
        self._tails -= 1
        return (self._tails,)

    def _enlist(self, node: Node, engine: int, epoch: int) -> None:
        if engine not in node.used:
            self.sizes[engine] += node.tokens
            node.used[engine] = epoch

    def _split(self, node: Node, chunks: int) -> Node:
        """Cut *node* after its first *chunks* chunks; return the first part."""
        parent, tokens = node.parent, node.tokens * chunks // len(node.keys)
        assert parent is not None, "the root has no chunks"
        first = Node(node.keys[:chunks], tokens, node.maker, parent, dict(node.used), {node.keys[chunks]: node})
        node.keys, node.tokens, node.parent = node.keys[chunks:], node.tokens - tokens, first
        parent.children[first.keys[0]] = first
        return first


def _shared(keys: Sequence[int], others: Sequence[int], start: int) -> int:
    """How many of *keys* are equal to *others* from place *start* on."""
    for place, (key, other) in enumerate(zip(keys, others[start:start + len(keys)], strict=False)):
        if key != other:
            return place
    return min(len(keys), len(others) - start)
