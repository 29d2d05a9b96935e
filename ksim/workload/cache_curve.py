"""How often a prefix cache hits, by its size: exactly, from the stack distances of a trace (Mattson et al., 1970)."""

from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush

import numpy as np
from attrs import frozen

from ksim.workload.reuse import Integers, Reuse, Reuses

__all__ = ["POLICIES", "CacheCurve", "Hits", "TierHits"]


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
    """What a tier of `blocks` adds to the hits of those above it, by policy.

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
        """What each tier adds to those before it; *sizes* are in blocks, the fastest first."""
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
