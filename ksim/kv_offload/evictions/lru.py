"""The least recently used request's chunks go first, the tail of its tokens before their head: vLLM's default."""

from collections.abc import Callable, Sequence

from attrs import define, field
from sortedcontainers import SortedDict

from ksim.kv_offload.evictions import RequestAccess

__all__ = ["Lru"]


@define(eq=False)
class Lru:
    """vLLM's `LRUCachePolicy`: all chunks of a request that runs share a rank, and later ones go first.

    When the request has ended, each chunk gets a rank of its own.
    """

    capacity: int
    _ranks: dict[int, tuple[int, int]] = field(factory=dict, init=False)
    _keys: SortedDict = field(factory=SortedDict, init=False)  # by rank
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
        chosen: list[int] = []
        for key in self._keys.values():
            if idle(key):
                chosen.append(key)
                if len(chosen) == count:
                    break
        else:
            return None
        for key in chosen:
            del self._keys[self._ranks.pop(key)]
        return chosen

    def _rank(self, access: RequestAccess) -> int:
        if not access.rank:
            self._latest += 1
            access.rank = self._latest
        return access.rank

    def _move(self, key: int, rank: tuple[int, int]) -> None:
        before = self._ranks.get(key)
        if before is not None:
            del self._keys[before]
        self._ranks[key] = rank
        self._keys[rank] = key
