"""Adaptive replacement (Megiddo and Modha, FAST 2003), as vLLM has it: chunks used once against chunks used often."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from attrs import define, field

from ksim.kv.offload.evictions import RequestAccess

__all__ = ["Arc"]


Keys = OrderedDict[int, None]


@define(eq=False)
class Arc:
    """vLLM's `ARCCachePolicy`.

    Chunks used once are in `t1`, those that a later request reused in `t2`, the oldest first.  Ghosts are keys of
    chunks that were evicted from them: `b1` and `b2`.  A request that wants a ghost moves the `target` for the size of
    `t1`.
    """

    capacity: int
    t1: Keys = field(factory=OrderedDict, init=False)
    t2: Keys = field(factory=OrderedDict, init=False)
    b1: Keys = field(factory=OrderedDict, init=False)
    b2: Keys = field(factory=OrderedDict, init=False)
    target: float = field(default=0.0, init=False)

    def insert(self, key: int, access: RequestAccess) -> None:
        self.t1[key] = None
        self.b1.pop(key, None)
        self.b2.pop(key, None)

    def seen(self, keys: Sequence[int], access: RequestAccess) -> None:
        """Do nothing: what counts is known when the request has ended."""

    def missed(self, keys: Sequence[int], access: RequestAccess) -> None:
        for key in reversed(keys):
            if key in self.b1:
                self.target = min(self.target + max(1, len(self.b2) / len(self.b1)), self.capacity)
                self.b1.move_to_end(key)
            elif key in self.b2:
                self.target = max(self.target - max(1, len(self.b1) / len(self.b2)), 0)
                self.b2.move_to_end(key)

    def close(self, access: RequestAccess) -> None:
        for key in reversed(access.in_order()):
            ready_before = key in access.reused
            if key in access.inserted and not ready_before:
                for chunks in (self.t1, self.t2):
                    if key in chunks:
                        chunks.move_to_end(key)
            elif ready_before and (key in self.t1 or key in self.t2):
                self.t1.pop(key, None)
                self.t2[key] = None
                self.t2.move_to_end(key)

    def evict(self, count: int, idle: Callable[[int], bool]) -> list[int] | None:
        chosen = self._choose(count, idle)
        if chosen is None:
            return None
        for key in chosen:
            once = key in self.t1
            del (self.t1 if once else self.t2)[key]
            (self.b1 if once else self.b2)[key] = None
        for ghosts in (self.b1, self.b2):
            while len(ghosts) > self.capacity:
                ghosts.popitem(last=False)
        return chosen

    def _choose(self, count: int, idle: Callable[[int], bool]) -> list[int] | None:
        """The chunks to evict: of `t1` where it has reached its target, else of `t2`, or of whichever has any."""
        once, often, size, chosen = _those(self.t1, idle), _those(self.t2, idle), len(self.t1), list[int]()
        for _ in range(count):
            key = next(once, None) if size >= int(self.target) else None
            if key is None:
                key = next(often, None)
            if key is None:
                key = next(once, None)
            if key is None:
                return None
            size -= key in self.t1
            chosen.append(key)
        return chosen


def _those(keys: Keys, idle: Callable[[int], bool]) -> Iterator[int]:
    return filter(idle, keys)
