"""The prefixes that a router believes engines to have, by the prompts that it has sent them.

A `PrefixIndex` has the blocks of these prompts, engine by engine.  `ActiveBlocks` counts the blocks of prompts that are
being served.  A `PrefixTree` is a radix tree that all engines share; its rules are those of SGLang's gateway
(sgl-model-gateway, policies/tree.rs), which counts characters where this one counts tokens: a text is the keys of its
chunks and, at its end, tokens that are nobody else's.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Optional

from attrs import define, field, frozen

from ksim.flow.request import BlockKeys, Request

__all__ = ["PrefixIndex", "Prompt", "leading", "nested", "ActiveBlocks", "PrefixTree"]


#: How many times as many keys as blocks are kept in the order of sending, and how many in any case.
_SPARE, _FEW = 4, 4096
#: Where keys begin of blocks of which several have one name, how many can have it, and names whose keys are kept.
_SEVERAL, _PIECES, _RUNS = 1 << 60, 1 << 20, 1 << 14


@frozen
class Prompt:
    """A request's prompt in blocks: the `keys` of those that others may have, too, and how many there are in all.

    Blocks without a key come last, and are the request's alone.
    """

    keys: Sequence[int]
    blocks: int


@define(eq=False)
class _Sent:
    """A prompt that was sent to an engine: the blocks that have not left the index since."""

    turn: int
    time: float
    keys: Iterator[int]
    unnamed: int


@define(eq=False)
class _Engine:
    """The prompts that an engine was sent, in order of their turns, and the last turn of each block."""

    turn: int = 0
    size: int = 0
    listed: int = 0  # keys of all in `sent`
    turns: dict[int, int] = field(factory=dict)
    sent: deque[_Sent] = field(factory=deque)


@define(eq=False)
class PrefixIndex:
    """Takes engines to have the blocks that they were sent, until `capacity` others come or `ttl` seconds have passed.

    Blocks are `block_tokens` long; a prompt's first `most_blocks` count.  A last block that is not full is one, too,
    with `partial`.  Blocks leave in the order in which they were last sent (LRU), those of a prompt from the first on.
    """

    block_tokens: int
    capacity: int | float = inf
    ttl: float = inf
    most_blocks: int | float = inf
    partial: bool = False
    _keys: BlockKeys = field(init=False)
    _runs: dict[int, tuple[int, ...]] = field(factory=dict, init=False)
    _tails: dict[tuple[int, object], int] = field(factory=dict, init=False)
    _holders: dict[int, int] = field(factory=dict, init=False)  # a bit for each engine
    _engines: dict[int, _Engine] = field(factory=dict, init=False)
    _is_cut: bool = field(default=False, init=False)  # whether an engine may lack the beginning of what it has

    def __attrs_post_init__(self) -> None:
        self._keys = BlockKeys(self.block_tokens)

    def prompt(self, request: Request) -> Prompt:
        """The prompt of *request* in blocks."""
        full, rest = divmod(request.prompt, self.block_tokens)
        blocks = int(min(full + (1 if rest and self.partial else 0), self.most_blocks))
        keys = self._named(request, min(full, blocks, request.named // self.block_tokens))
        if len(keys) == full < blocks and (tail := self._tail(request, keys[-1] if keys else -1)) is not None:
            keys.append(tail)
        return Prompt(keys, blocks)

    def _named(self, request: Request, blocks: int) -> list[int]:
        """The keys of the first *blocks* blocks; where a name is that of several, it is looked up once for all."""
        pieces, rest = divmod(request.chunk_tokens, self.block_tokens)
        if rest or pieces == 1:
            return self._keys.of(request, blocks)
        keys, runs = list[int](), self._runs
        if len(runs) > _RUNS:
            runs.clear()
        for run in self._keys.runs(request.keyed.chunks[:-(-blocks // pieces)], pieces):
            keys += runs.get(run) or self._run(run, pieces)
        return keys[:blocks]

    def _run(self, run: int, pieces: int) -> tuple[int, ...]:
        """The keys of the blocks that one name is that of; they are kept, as making large numbers takes time."""
        first = _SEVERAL + run * _PIECES
        return self._runs.setdefault(run, tuple(range(first, first + pieces)))

    def _tail(self, request: Request, before: int) -> int | None:
        """The key of a last block that is not full, if its tokens have names."""
        size = request.chunk_tokens
        if len(request.chunks) * size < request.prompt:
            return None
        start = request.prompt - request.prompt % self.block_tokens
        names = request.keyed.chunks[start // size: -(-request.prompt // size)]
        return self._tails.setdefault((before, (start % size, request.prompt, *names)), -2 - len(self._tails))

    def shared(self, prompt: Prompt) -> dict[int, int]:
        """The number of blocks of *prompt* that each engine has, among those before the first that none has."""
        if not self._is_cut:
            return nested(prompt.keys, self._holders)
        counts, run, last, holders = dict[int, int](), 0, 0, self._holders
        for key in prompt.keys:
            bits = holders.get(key)
            if bits == last:
                run += 1
                continue
            _count(counts, last, run)
            if bits is None:
                return counts
            run, last = 1, bits
        _count(counts, last, run)
        return counts

    def leading(self, prompt: Prompt) -> dict[int, int]:
        """The number of blocks of *prompt* that each engine has before the first that it lacks."""
        return (leading if self._is_cut else nested)(prompt.keys, self._holders)

    def add(self, prompt: Prompt, number: int, now: float, capacity: float | None = None) -> None:
        """Engine *number* is sent *prompt*; it keeps *capacity* blocks if that is given."""
        engine = self._engines.get(number)
        if engine is None:
            engine = self._engines[number] = _Engine()
        engine.turn += 1
        fresh, bit, holders = [key for key in prompt.keys if key not in engine.turns], 1 << number, self._holders
        for key in fresh:
            holders[key] = holders.get(key, 0) | bit
        engine.turns.update(dict.fromkeys(prompt.keys, engine.turn))
        unnamed = prompt.blocks - len(prompt.keys)
        engine.sent.append(_Sent(engine.turn, now, iter(prompt.keys), unnamed))
        engine.size += len(fresh) + unnamed
        engine.listed += len(prompt.keys)
        if engine.listed > _SPARE * len(engine.turns) + _FEW:
            _compact(engine)
        self._trim(engine, bit, engine.size - (self.capacity if capacity is None else capacity))

    def forget(self, number: int) -> None:
        """Drop all blocks of engine *number*, which has gone."""
        if engine := self._engines.pop(number, None):
            for sent in engine.sent:
                self._drop(engine, sent, 1 << number, inf)

    def expire(self, now: float) -> None:
        """Drop the blocks that were last sent `ttl` seconds before *now*, or longer ago."""
        for number, engine in self._engines.items():
            while engine.sent and engine.sent[0].time + self.ttl <= now:
                oldest = engine.sent.popleft()
                engine.size -= self._drop(engine, oldest, 1 << number, inf) + oldest.unnamed

    def _trim(self, engine: _Engine, bit: int, excess: float) -> None:
        """Drop the *excess* blocks of *engine* that were sent longest ago."""
        while excess > 0:
            self._is_cut = True
            oldest = engine.sent[0]
            gone = self._drop(engine, oldest, bit, excess)
            unnamed = int(min(oldest.unnamed, excess - gone))
            oldest.unnamed -= unnamed
            engine.size -= gone + unnamed
            excess -= gone + unnamed
            if excess > 0:
                engine.sent.popleft()

    def _drop(self, engine: _Engine, sent: _Sent, bit: int, most: float) -> int:
        """Drop at most *most* blocks of *sent* that were not sent again since; return how many."""
        gone, turns, holders = 0, engine.turns, self._holders
        while gone < most and (key := next(sent.keys, None)) is not None:
            if turns[key] != sent.turn:
                continue
            del turns[key]
            bits = holders[key] & ~bit
            if bits:
                holders[key] = bits
            else:
                del holders[key]
            gone += 1
        return gone


def _compact(engine: _Engine) -> None:
    """Forget, of what was sent, the blocks that were sent again since."""
    kept: deque[_Sent] = deque()
    engine.listed = 0
    for sent in engine.sent:
        keys = [key for key in sent.keys if engine.turns[key] == sent.turn]
        if keys or sent.unnamed:
            sent.keys = iter(keys)
            engine.listed += len(keys)
            kept.append(sent)
    engine.sent = kept


def leading(keys: Sequence[int], holders: Mapping[int, int]) -> dict[int, int]:
    """The number of *keys* that each engine has before the first that it lacks; *holders* have a bit an engine."""
    depths: dict[int, int] = {}
    alive = holders.get(keys[0], 0) if keys else 0
    for index, key in enumerate(keys):
        bits = holders.get(key, 0)
        if alive & ~bits:
            depths.update(dict.fromkeys(_numbers(alive & ~bits), index))
            alive &= bits
            if not alive:
                return depths
    depths.update(dict.fromkeys(_numbers(alive), len(keys)))
    return depths


def nested(keys: Sequence[int], holders: Mapping[int, int]) -> dict[int, int]:
    """As `leading`, for engines that have all keys before one that they have: few keys are looked up."""
    depths: dict[int, int] = {}
    start, end, get = 0, len(keys), holders.get
    bits = get(keys[0], 0) if keys else 0
    while bits:
        start = end if get(keys[-1], 0) == bits else _last_of(keys, holders, start) + 1
        after = get(keys[start], 0) if start < end else 0
        depths.update(dict.fromkeys(_numbers(bits & ~after), start))
        bits = after
    return depths


def _last_of(keys: Sequence[int], holders: Mapping[int, int], first: int) -> int:
    """The last place with the same holders as place *first*; those of the last place are others."""
    bits, beyond = holders[keys[first]], len(keys) - 1
    while beyond - first > 1:
        middle = (first + beyond) // 2
        if holders.get(keys[middle]) == bits:
            first = middle
        else:
            beyond = middle
    return first


def _count(counts: dict[int, int], bits: int, blocks: int) -> None:
    """Add *blocks* for each engine of *bits*."""
    for number in _numbers(bits):
        counts[number] = counts.get(number, 0) + blocks


def _numbers(bits: int) -> Iterator[int]:
    """The engines whose *bits* are set, the lowest first."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


@define(eq=False)
class ActiveBlocks:
    """Counts a block once for each engine, however many of its requests have it.

    Whoever has a block has those before it, so what one request has alone is the end of its prompt.
    """

    amounts: dict[int, int] = field(factory=dict, init=False)
    _holders: dict[int, int] = field(factory=dict, init=False)  # a bit for each engine
    #: By engine, how many of its requests have a block beside the first that has it.
    _more: dict[int, Counter[int]] = field(factory=dict, init=False)

    def leading(self, prompt: Prompt) -> dict[int, int]:
        """The number of blocks of *prompt*, from the first on, that each engine serves for other requests."""
        return nested(prompt.keys, self._holders)

    def add(self, prompt: Prompt, number: int) -> None:
        """Engine *number* serves *prompt*, too."""
        keys, holders, bit = prompt.keys, self._holders, 1 << number
        known = bisect_left(keys, True, key=lambda key: not holders.get(key, 0) & bit)
        held = bisect_left(keys, True, known, key=lambda key: key not in holders)
        for key in keys[known:held]:
            holders[key] |= bit
        holders.update(dict.fromkeys(keys[held:], bit))
        if known:
            self._more.setdefault(number, Counter()).update(keys[:known])
        self.amounts[number] = self.amounts.get(number, 0) + prompt.blocks - known

    def remove(self, prompt: Prompt, number: int) -> None:
        """Engine *number* has served *prompt* to its end."""
        keys, holders, more = prompt.keys, self._holders, self._more.get(number, Counter())
        shared = bisect_left(keys, True, key=lambda key: key not in more)
        for key in keys[:shared]:
            if more[key] > 1:
                more[key] -= 1
            else:
                del more[key]
        for key in keys[shared:]:
            if left := holders[key] & ~(1 << number):
                holders[key] = left
            else:
                del holders[key]
        self.amounts[number] -= prompt.blocks - shared


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
        """The number of the first *keys* that are in the tree, and an engine that has these; -1 if none has."""
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

    def forget(self, engine: int) -> None:
        """Take everything from *engine*, which has gone."""
        for node in reversed([*self._nodes()]):  # those that go on from others come first
            if engine in node.used and node.parent is not None:
                self._remove(node, node.parent, engine)
        self._root.used.pop(engine, None)
        self.sizes.pop(engine, None)

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
    """The number of *keys* from place *start* on that are equal to *others*."""
    for index, (key, other) in enumerate(zip(keys, others[start:start + len(keys)], strict=False)):
        if key != other:
            return index
    return min(len(keys), len(others) - start)
