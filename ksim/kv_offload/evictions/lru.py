"""The least recently used request's chunks go first, the tail of its tokens before their head: vLLM's default."""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from attrs import define, field

from ksim.kv_offload.evictions import RequestAccess

__all__ = ["Lru"]

#: The heap is made anew where more than half of it, and more than this, is of no use.
_STALE = 1000


@define(eq=False)
class Lru:
    """vLLM's `LRUCachePolicy`: all chunks of a request that runs share a rank, and later ones go first.

    When the request has ended, each chunk gets a rank of its own.  The heap also has ranks that chunks had before;
    they are passed over.
    """

    capacity: int
    _ranks: dict[int, tuple[int, int]] = field(factory=dict, init=False)
    _heap: list[tuple[tuple[int, int], int]] = field(factory=list, init=False)  # ranks, and whose they are
    _latest: int = field(default=0, init=False)

    def insert(self, key: int, access: RequestAccess) -> None:
        self._move(key, (self._rank(access), -access.seen[key]))

    def seen(self, keys: Sequence[int], access: RequestAccess) -> None:
        rank = self._rank(access)
        for key in keys:
            if key in self._ranks and self._ranks[key] < (place := (rank, -access.seen[key])):
                self._move(key, place)

    def missed(self, keys: Sequence[int], access: RequestAccess) -> None:
        """Do nothing."""

    def close(self, access: RequestAccess) -> None:
        for key in reversed(access.in_order()):
            if key in self._ranks:
                self._latest += 1
                self._move(key, (self._latest, 0))

    def evict(self, count: int, idle: Callable[[int], bool]) -> list[int] | None:
        chosen, passed = list[tuple[tuple[int, int], int]](), list[tuple[tuple[int, int], int]]()
        while self._heap and len(chosen) < count:
            rank, key = entry = heappop(self._heap)
            if self._ranks.get(key) == rank:
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

    def _move(self, key: int, rank: tuple[int, int]) -> None:
        self._ranks[key] = rank
        heappush(self._heap, (rank, key))
        if len(self._heap) > 2 * len(self._ranks) + _STALE:
            self._heap = [(rank, key) for key, rank in self._ranks.items()]
            heapify(self._heap)
