"""LMCache's store of chunks in host memory: what is in it, what is pinned, and what is lost for others."""

from collections import OrderedDict
from collections.abc import Sequence

from attrs import define, field

from ksim.kv_offload.store import StoreListener

__all__ = ["LmcacheStore"]


@define(eq=False)
class LmcacheStore:
    """Has room for `capacity` chunks, known by their keys; LMCache's `LocalCPUBackend` with its LRU policy.

    A chunk is in the store once its copy has ended; its room is taken when the copy begins.  New chunks come in the
    order of the prompt.  A lookup pins what it finds, and moves it to the end, heads behind tails.  The least recent
    chunk that nobody has pinned makes room for others.
    """

    capacity: int
    listener: StoreListener | None = None
    storing: int = field(default=0, init=False)
    _pins: OrderedDict[int, int] = field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._pins) + self.storing

    def __contains__(self, key: object) -> bool:
        return key in self._pins

    def look_up(self, keys: Sequence[int]) -> int:
        """Pin the leading *keys* that are there; return how many these are."""
        hits = next((place for place, key in enumerate(keys) if key not in self._pins), len(keys))
        for key in reversed(keys[:hits]):
            self._pins[key] += 1
            self._pins.move_to_end(key)
        return hits

    def unpin(self, keys: Sequence[int]) -> None:
        for key in keys:
            assert self._pins[key] > 0, "a chunk is given back that nobody holds"
            self._pins[key] -= 1

    def make_room(self, chunks: int) -> int:
        """Take room for *chunks*, or for as many as there is; return how many these are."""
        evicted, missing = list[int](), len(self) + chunks - self.capacity
        if missing > 0:
            for key, pins in self._pins.items():
                if len(evicted) == missing:
                    break
                if not pins:
                    evicted.append(key)
            for key in evicted:
                del self._pins[key]
            if evicted and self.listener is not None:
                self.listener.evicted(evicted)
        fits = min(chunks, self.capacity - len(self))
        self.storing += fits
        return fits

    def stored(self, keys: Sequence[int]) -> None:
        """The copies of *keys* have ended; of a chunk that is there by now, the second one is dropped."""
        self.storing -= len(keys)
        new = [key for key in keys if key not in self._pins]
        self._pins.update(dict.fromkeys(new, 0))
        if new and self.listener is not None:
            self.listener.taken(new)
            self.listener.stored(new)
