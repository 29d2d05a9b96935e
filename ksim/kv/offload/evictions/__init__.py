"""Evictions of a chunk store: which chunks make room for others.

An eviction orders the chunks of a `ChunkStore`, which it knows by their keys.
To add one, add a file with a class that is made with the store's capacity, in
chunks, and has these methods:

    insert(key, access)     a chunk is taken in for a request; it is being stored
    seen(keys, access)      a request loads these chunks or offers them, each for the first time; some may be absent
    missed(keys, access)    a request wants these absent chunks stored, each for the first time; `insert` follows unless
                            there is no room
    close(access)           a request has ended, and its last stores have begun
    evict(count, idle)      choose `count` chunks for which `idle` answers True, forget them, and return their keys;
                            where there are fewer, change nothing and return None

`RequestAccess` has what a request has done so far.  One from elsewhere is named ``package.module:Class``.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import define, field


@define(eq=False)
class RequestAccess:
    """The chunks that one request was `seen` with, by their places in it; vLLM's `_RequestCacheAccess`.

    It loaded or offered them.  Some it has `inserted` into the store; others it `reused`: they were ready when it
    came.  `missed` ones were absent when it wanted them stored.  An eviction may keep a `rank` here.
    """

    seen: dict[int, int] = field(factory=dict)
    inserted: set[int] = field(factory=set)
    reused: set[int] = field(factory=set)
    missed: set[int] = field(factory=set)
    rank: int = 0

    def in_order(self) -> list[int]:
        """The keys that it was seen with, from the head of the request to its tail."""
        return sorted(self.seen, key=self.seen.__getitem__)


class ChunkEviction(Protocol):
    def insert(self, key: int, access: RequestAccess) -> None: ...

    def seen(self, keys: Sequence[int], access: RequestAccess) -> None: ...

    def missed(self, keys: Sequence[int], access: RequestAccess) -> None: ...

    def close(self, access: RequestAccess) -> None: ...

    def evict(self, count: int, idle: Callable[[int], bool]) -> list[int] | None: ...
