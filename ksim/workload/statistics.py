"""Statistics of a trace, in one pass over its requests: lengths, arrivals, and hits of prefix caches of every size.

Hits are exact.  They follow from the stack distances of the trace: for a block that comes again, the number of others
that are used in between (Mattson et al., 1970).  `HashIds` has block ids as Mooncake's traces have them: whole
numbers, equal where the blocks of prompts are equal.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count

import attrs
import numpy as np
from attrs import Factory, define, field, frozen
from numpy.typing import NDArray

from ksim.flow.request import BlockKeys, Request
from ksim.workload.arrivals import ArrivalSummary, ArrivalTally
from ksim.workload.rows import Ledger, follows

#: The probabilities of `Summary.quantiles`: every hundredth, and two more in the upper tail.
PROBABILITIES = tuple(sorted({*(percent / 100 for percent in range(101)), 0.995, 0.999}))


@frozen
class Summary:
    """Count, sum, mean and quantiles of whole numbers; quantiles between two numbers are interpolated."""

    count: int
    total: int
    mean: float
    quantiles: tuple[float, ...]

    def at(self, probability: float) -> float:
        """Return the quantile at one of `PROBABILITIES`; raise ValueError for any other."""
        return self.quantiles[PROBABILITIES.index(probability)]

    def row(self) -> dict[str, float]:
        """Return the mean and common quantiles by name."""
        names = {"min": 0.0, "p1": 0.01, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
        return {"mean": self.mean} | {name: self.at(probability) for name, probability in names.items()}


@define
class Occurrences:
    """Counts the occurrences of each whole number; memory grows with the different numbers only."""

    counts: Counter[int] = field(factory=Counter)

    def add(self, value: int) -> None:
        self.counts[value] += 1

    def summary(self) -> Summary:
        """Summarise the numbers, of which there must be at least one."""
        values = np.array(sorted(self.counts))
        upto = np.cumsum([self.counts[value] for value in values.tolist()])
        total = sum(value * times for value, times in self.counts.items())
        rank = np.array(PROBABILITIES) * (upto[-1] - 1)
        low = values[np.searchsorted(upto, np.floor(rank), side="right")]
        high = values[np.searchsorted(upto, np.ceil(rank), side="right")]
        quantiles = low + (high - low) * (rank - np.floor(rank))
        return Summary(int(upto[-1]), total, total / int(upto[-1]), tuple(quantiles.tolist()))


@frozen
class Sharing:
    """Chunks and prompt tokens that an unlimited prefix cache would hit, and requests with some or only such chunks."""

    chunks: int
    hit_chunks: int
    hit_tokens: int
    requests_with_hit: int
    requests_all_hit: int


@define
class SeenPrefixes:
    """The prefixes of chunks seen so far, each identified by the number of its last chunk.

    Memory grows with the different chunks.
    """

    _numbers: dict[tuple[int, Hashable], int] = field(factory=dict)
    _chunks: int = 0
    _hit_chunks: int = 0
    _hit_tokens: int = 0
    _with_hit: int = 0
    _all_hit: int = 0

    def add(self, request: Request) -> None:
        """Count the chunks of the prompt that are in a known prefix, then add all chunks of the request."""
        in_prompt = min(len(request.chunks), -(-request.prompt // request.chunk_tokens))
        hits = min(self._remember(request), in_prompt)
        self._chunks += in_prompt
        self._hit_chunks += hits
        self._hit_tokens += min(hits * request.chunk_tokens, request.prompt)
        self._with_hit += hits > 0
        self._all_hit += hits * request.chunk_tokens >= request.prompt

    def _remember(self, request: Request) -> int:
        """Add the request's chunks; return how many, from the start on, were known."""
        # Chunks of different sizes are different, even if their names are equal.
        place, known = -request.chunk_tokens, 0
        for depth, chunk in enumerate(request.chunks):
            following = self._numbers.get((place, chunk))
            if following is None:
                following = self._numbers[place, chunk] = len(self._numbers)
            else:
                known = depth + 1
            place = following
        return known

    def sharing(self) -> Sharing:
        return Sharing(self._chunks, self._hit_chunks, self._hit_tokens, self._with_hit, self._all_hit)


@frozen
class TraceStatistics:
    """Arrivals, lengths in tokens, shared prefixes and sessions of a trace.

    A turn that only follows another of its session has no arrival of its own.
    `turns` are those per session, None without sessions; `ledger` has the counts of
    the trace's rows.
    """

    requests: int
    arrivals: ArrivalSummary
    prompt: Summary
    output: Summary
    total: Summary
    sharing: Sharing
    turns: Summary | None
    ledger: Ledger

    @property
    def hit_share(self) -> float:
        """The share of prompt tokens that a prefix cache without limit would hit."""
        return self.sharing.hit_tokens / self.prompt.total

    def table(self) -> dict[str, dict[str, float]]:
        """Return the numbers by group and name, for a report; groups without data are left out."""
        table = {"arrivals": self.arrivals.row(), "prompt": self.prompt.row(), "output": self.output.row(),
                 "total": self.total.row()}
        if self.sharing.chunks:
            table["sharing"] = {"hit_share": self.hit_share} | attrs.asdict(self.sharing)
        if self.turns:
            table["turns"] = {"sessions": self.turns.count} | self.turns.row()
        return table | {"ledger": dict(self.ledger.counts())}


def measure(requests: Iterable[Request], ledger: Ledger | None = None) -> TraceStatistics:
    """Measure *requests*, in order of arrival; *ledger* is the one that fills while they are read.

    Raises ValueError if there is no request.
    """
    prompts, outputs, totals = Occurrences(), Occurrences(), Occurrences()
    arrivals, prefixes, sessions = ArrivalTally(), SeenPrefixes(), Counter[str]()
    previous = None
    for request in requests:
        if not follows(request, previous):
            arrivals.add(request.arrival)
        prompts.add(request.prompt)
        outputs.add(request.output)
        totals.add(request.prompt + request.output)
        prefixes.add(request)
        sessions[request.session] += 1
        previous = request
    if previous is None:
        raise ValueError("there is no request to measure")
    count = sessions.total()
    del sessions[""]
    turns = Occurrences(Counter(sessions.values())).summary() if sessions else None
    return TraceStatistics(
        requests=count, arrivals=arrivals.summary(), prompt=prompts.summary(), output=outputs.summary(),
        total=totals.summary(), sharing=prefixes.sharing(), turns=turns,
        ledger=Ledger() if ledger is None else ledger)


Integers = NDArray[np.int64]


@frozen
class Reuses:
    """Runs of blocks that were last used by the request `since`, and are used again by the request `by`: columns.

    A run has `blocks` blocks of the prompt of `by`, from its block `first` on; the prompt ends `missing` tokens before
    the last of them does.  `distance` counts the different blocks that were used after `since`, and `left` those of
    `since` that were not used after it, which begin with this run.
    """

    since: Integers
    by: Integers
    first: Integers
    blocks: Integers
    missing: Integers
    distance: Integers
    left: Integers


@define
class Sums:
    """Sums of the first of many numbers, which grow and change: a Fenwick tree."""

    _tree: list[int] = field(factory=lambda: [0])

    def append(self, number: int) -> None:
        place = len(self._tree)
        self._tree.append(number + self.first(place - 1) - self.first(place & (place - 1)))

    def add(self, place: int, number: int) -> None:
        place += 1
        while place < len(self._tree):
            self._tree[place] += number
            place += place & -place

    def first(self, count: int) -> int:
        """The sum of the first *count* numbers."""
        total = 0
        while count:
            total += self._tree[count]
            count &= count - 1
        return total


@frozen
class Cut:
    """A request in blocks: keys of those that have names, how many it uses, and how many of these its prompt has.

    The prompt ends `missing` tokens before its last block does.
    """

    keys: list[int]
    used: int
    prompt: int
    missing: int


@define
class Cutter:
    """Cuts requests into blocks of `block_tokens`.

    Where a trace names blocks of this size, each name counts, also that of a partial block at the end.  Otherwise the
    blocks are cut anew, and only full ones count, as in an engine.  Blocks without a name are the request's alone.
    """

    block_tokens: int
    _keys: BlockKeys = field(init=False)

    @_keys.default
    def _empty(self) -> BlockKeys:
        return BlockKeys(self.block_tokens)

    def cut(self, request: Request) -> Cut:
        full, size = request.prompt // self.block_tokens, self.block_tokens
        if request.chunk_tokens != size:
            keys = self._keys.of(request)
            return Cut(keys, max(len(keys), full), full, 0)
        # A prompt as long as all names: none of them is cut off.
        keys = self._keys.of(attrs.evolve(request, prompt=max(1, len(request.chunks) * size)))
        prompt = max(full, min(len(keys), -(-request.prompt // size)))
        return Cut(keys, max(len(keys), prompt), prompt, max(0, prompt * size - request.prompt))


@define
class Reuse:
    """Follows the requests of a trace, and collects its `Reuses`.

    A block is used whenever those before it in its prompt are.  So of the blocks that a request used, those that nobody
    used since are its last ones, and one number a request says how many.  That makes a request cost O(log requests),
    beside a look at each of its blocks.
    """

    cutter: Cutter
    requests: int = 0
    prompt_blocks: int = 0
    prompt_tokens: int = 0
    distinct: int = 0
    _left: Sums = field(factory=Sums)
    #: The last request that used each block, by the block's key.
    _users: list[int] = field(factory=list)
    #: How many blocks each request used.
    _used: list[int] = field(factory=list)
    _rows: list[tuple[int, ...]] = field(factory=list)

    @classmethod
    def of(cls, requests: Iterable[Request], block_tokens: int) -> "Reuse":
        reuse = cls(Cutter(block_tokens))
        for request in requests:
            reuse.add(request)
        return reuse

    def add(self, request: Request) -> None:
        cut = self.cutter.cut(request)
        known = self._known(cut.keys)
        for since, first, end in self._runs(cut.keys[:known]):
            self._reuse(cut, since, first, end)
        self._users += [self.requests] * (len(cut.keys) - known)
        self._left.append(cut.used)
        self._used.append(cut.used)
        self.requests += 1
        self.distinct += cut.used - known
        self.prompt_blocks += cut.prompt
        self.prompt_tokens += request.prompt

    def _known(self, keys: list[int]) -> int:
        """The number of *keys* that were used before: keys are numbered in order, and all after a new one are new."""
        new = keys[-1] - len(self._users) + 1 if keys else 0
        return len(keys) - max(0, new)

    def _runs(self, keys: list[int]) -> Iterator[tuple[int, int, int]]:
        """Each request that used some of *keys* last, and the places at which these begin and end."""
        users, begin, user = self._users, 0, -1
        for index, key in enumerate(keys):
            if users[key] != user:
                if index:
                    yield user, begin, index
                begin, user = index, users[key]
            users[key] = self.requests
        if keys:
            yield user, begin, len(keys)

    def _reuse(self, cut: Cut, since: int, first: int, end: int) -> None:
        inside = min(end, cut.prompt)
        if inside > first:
            distance = self.distinct - self._left.first(since + 1)
            missing, left = cut.missing if inside == cut.prompt else 0, self._used[since] - first
            self._rows.append((since, self.requests, first, inside - first, missing, distance, left))
        self._left.add(since, first - end)

    def reuses(self) -> Reuses:
        """All so far, by request and place."""
        return Reuses(*np.array(self._rows, np.int64).reshape(-1, 7).T)


def lru(reuses: Reuses, size: int) -> Integers:
    """Blocks are used in the order of the prompt, so the first ones of a request leave the cache first.

    A block behind a missing one is no hit.  So all that is left of a request is hit, or nothing.
    """
    return np.where(reuses.distance + reuses.left <= size, reuses.blocks, 0)


def lru_tails_first(reuses: Reuses, size: int) -> Integers:
    """Blocks are used from the last to the first, so the last ones of a request leave the cache first, as in vLLM."""
    return np.clip(size - reuses.distance, 0, reuses.blocks)


def ideal(reuses: Reuses, size: int) -> Integers:
    """The block whose next use is furthest leaves the cache, or does not enter it: Belady's MIN, with bypass.

    A block is never used before those in front of it.  So none stays longer than they do, every block that stays is a
    hit, and no cache of this size has more hits.
    """
    blocks, since, by, first = (column.tolist() for column in (reuses.blocks, reuses.since, reuses.by, reuses.first))
    cached, held, ended, furthest = list(blocks), 0, 0, list[tuple[int, int, int]]()
    for run in np.argsort(reuses.since, kind="stable").tolist():
        while by[ended] <= since[run]:
            held -= cached[ended]
            ended += 1
        held += blocks[run]
        heappush(furthest, (-by[run], -first[run], run))
        while held > size:
            last = furthest[0][2]
            dropped = min(cached[last], held - size)
            cached[last] -= dropped
            held -= dropped
            if not cached[last]:
                heappop(furthest)
    return np.array(cached, np.int64)


#: How many blocks of each run a cache of so many blocks hits.
POLICIES: dict[str, Callable[[Reuses, int], Integers]] = {
    "lru": lru, "lru_tails_first": lru_tails_first, "ideal": ideal}


@frozen
class Hits:
    """Blocks and tokens of prompts that are found in a cache."""

    blocks: int
    tokens: int

    def __sub__(self, other: "Hits") -> "Hits":
        return Hits(self.blocks - other.blocks, self.tokens - other.tokens)


@frozen
class TierHits:
    """The hits that a tier of `blocks` adds to those of the tiers above it, by policy.

    In `exclusive` tiers a block is in one at a time: what leaves a tier goes to the one below, so together they are one
    cache of the sum of their sizes.  In `inclusive` tiers each sees all requests, and what is in a tier is in larger
    ones below it, too: together they are one cache of the size of the largest.
    """

    name: str
    blocks: int
    exclusive: Mapping[str, Hits]
    inclusive: Mapping[str, Hits]


@frozen
class CacheCurve:
    """The hits of one prefix cache that sees all requests of a trace, in their order, for any size.

    For each request, the leading blocks of its prompt that are in the cache are hits; then all of its blocks are used.
    """

    reuse: Reuse
    reuses: Reuses

    @classmethod
    def of(cls, reuse: Reuse) -> "CacheCurve":
        return cls(reuse, reuse.reuses())

    @property
    def block_tokens(self) -> int:
        return self.reuse.cutter.block_tokens

    def hits(self, policy: str, size: int) -> Hits:
        """The hits of a cache of *size* blocks under one of `POLICIES`."""
        blocks = POLICIES[policy](self.reuses, size)
        missing = self.reuses.missing[blocks == self.reuses.blocks].sum()
        total = int(blocks.sum())
        return Hits(total, total * self.block_tokens - int(missing))

    def rates(self, hits: Hits) -> tuple[float, float]:
        """*hits* as shares of the blocks and of the tokens of all prompts."""
        return hits.blocks / max(1, self.reuse.prompt_blocks), hits.tokens / self.reuse.prompt_tokens

    def largest(self) -> int:
        """The size from which on a cache has no more hits, under any policy."""
        return int((self.reuses.distance + self.reuses.left).max(initial=1))

    def sizes(self, decades: int = 3) -> list[int]:
        """Round sizes over so many decades, up to the first that is as good as any."""
        return list(_round_sizes(self.largest(), decades))

    def tiers(self, sizes: Mapping[str, int]) -> list[TierHits]:
        """The hits that each tier adds to those before it; *sizes* are in blocks, the fastest tier first."""
        rows, total, largest = list[TierHits](), 0, 0
        for name, size in sizes.items():
            rows.append(TierHits(name, size, self._added(total, total + size),
                                 self._added(largest, max(largest, size))))
            total, largest = total + size, max(largest, size)
        return rows

    def _added(self, before: int, after: int) -> dict[str, Hits]:
        return {policy: self.hits(policy, after) - self.hits(policy, before) for policy in POLICIES}


def _round_sizes(largest: int, decades: int) -> Iterator[int]:
    unit = 10 ** max(0, len(str(largest)) - 1 - decades)
    while True:
        for factor in (1, 2, 5):
            yield unit * factor
            if unit * factor >= largest:
                return
        unit *= 10


@define
class HashIds:
    """Numbers the blocks of `size` tokens of prompts; what a request does not name gets a number of its own."""

    size: int
    _numbers: dict[Hashable, int] = Factory(dict)
    _next: "count[int]" = Factory(count)

    def of(self, request: Request) -> list[int]:
        """The ids of the blocks of *request*'s prompt, the partial last one included; none if it names nothing."""
        blocks = -(-request.prompt // self.size)
        names = request.chunks if self.size == request.chunk_tokens else request.content(self.size)
        if not names:
            return []
        ids = [self._number(name) for name in names[:blocks if self.size == request.chunk_tokens
                                                      else request.prompt // self.size]]
        return ids + [next(self._next) for _ in range(blocks - len(ids))]

    def _number(self, name: Hashable) -> int:
        if name not in self._numbers:
            self._numbers[name] = next(self._next)
        return self._numbers[name]
