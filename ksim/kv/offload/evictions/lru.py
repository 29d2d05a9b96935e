"""The least recently used request's chunks go first, the tail of its tokens before their head: vLLM's default."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from attrs import define, field

from ksim.kv.offload.evictions import RequestAccess

__all__ = ["Lru"]


Rank = tuple[int, int]


@define(eq=False)
class Lru:
    """vLLM's `LRUCachePolicy`: all chunks of a request that runs share a rank, and later ones go first.

    When the request has ended, each chunk gets a rank of its own.  Ranks only rise.  So the heap has one entry for each
    chunk, with its rank or one that it had before, and an entry at the top is brought up to date when it is looked at.
    """

    capacity: int
    _ranks: dict[int, Rank] = field(factory=dict, init=False)
    _heap: list[tuple[Rank, int]] = field(factory=list, init=False)
    _latest: int = field(default=0, init=False)

    def insert(self, key: int, access: RequestAccess) -> None:
        rank = self._ranks[key] = (self._rank(access), -access.seen[key])
        heappush(self._heap, (rank, key))

    def seen(self, keys: Sequence[int], access: RequestAccess) -> None:
        rank, ranks, places = self._rank(access), self._ranks, access.seen
        for key in keys:
            if key in ranks and ranks[key] < (index := (rank, -places[key])):
                ranks[key] = index

    def missed(self, keys: Sequence[int], access: RequestAccess) -> None:
        """Do nothing."""

    def close(self, access: RequestAccess) -> None:
        ranks, latest = self._ranks, self._latest
        for key in reversed(access.in_order()):
            if key in ranks:
                latest += 1
                ranks[key] = latest, 0
        self._latest = latest

    def evict(self, count: int, idle: Callable[[int], bool]) -> list[int] | None:
        chosen, passed = list[tuple[Rank, int]](), list[tuple[Rank, int]]()
        while self._heap and len(chosen) < count:
            rank, key = entry = heappop(self._heap)
            if (risen := self._ranks[key]) != rank:
                heappush(self._heap, (risen, key))
            else:
                (chosen if idle(key) else passed).append(entry)
        enough = len(chosen) == count
        for entry in passed if enough else passed + chosen:
            heappush(self._heap, entry)
        if not enough:
            return None
        for _, key in chosen:
            del self._ranks[key]
        return [key for _, key in chosen]

    def _rank(self, access: RequestAccess) -> int:
        if not access.rank:
            self._latest += 1
            access.rank = self._latest
        return access.rank
