"""Which engine has which prefix, as a router guesses it from what it has sent where."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from attrs import define, field, frozen

from ksim.flow.block_keys import BlockKeys
from ksim.flow.request import Request

__all__ = ["PrefixIndex", "Prompt", "leading", "nested"]

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
    """What an engine was sent: the last turn in which each block was, and prompts in the order of their turns."""

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
        """By engine, how many blocks of *prompt* it has among those before the first that none has."""
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
        """By engine, how many blocks of *prompt* it has before the first that it lacks."""
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

    def expire(self, now: float) -> None:
        """Let go what was last sent `ttl` seconds before *now*, or longer ago."""
        for number, engine in self._engines.items():
            while engine.sent and engine.sent[0].time + self.ttl <= now:
                oldest = engine.sent.popleft()
                engine.size -= self._drop(engine, oldest, 1 << number, inf) + oldest.unnamed

    def _trim(self, engine: _Engine, bit: int, excess: float) -> None:
        """Let go the *excess* blocks of *engine* that were sent longest ago."""
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
        """Let go blocks of *sent* that were not sent again since, at most *most*; returns how many."""
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
    """By engine, how many of *keys* it has before the first that it lacks; *holders* have a bit for each engine."""
    depths: dict[int, int] = {}
    alive = holders.get(keys[0], 0) if keys else 0
    for place, key in enumerate(keys):
        bits = holders.get(key, 0)
        if alive & ~bits:
            depths.update(dict.fromkeys(_numbers(alive & ~bits), place))
            alive &= bits
            if not alive:
                return depths
    depths.update(dict.fromkeys(_numbers(alive), len(keys)))
    return depths


def nested(keys: Sequence[int], holders: Mapping[int, int]) -> dict[int, int]:
    """The same where an engine that has a key has those before it, too: few places are looked at."""
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
