"""Blocks that are taken, used, given back and overwritten as one, and the order in which free ones are taken.

The order is vLLM's (see blocks.py).  Which blocks they are nobody can see, only
how many there are and what is lost with them: so blocks that hold nothing need
but be counted, and those that hold a run of tokens are one extent.
"""

from attrs import define, field

from ksim.kv_cache.cache import Holding
from ksim.kv_cache.runs import Run


class Extent:
    """The blocks that hold `run` for its `users`; without any, they are in the queue, after `before`.

    The last block of the run is the first to be taken from the queue.
    """

    __slots__ = ("after", "before", "run", "users")

    def __init__(self, run: "HeldRun", users: set[Holding]):
        self.run = run
        self.users = users
        self.before = self.after = self

    def follow(self, other: "Extent") -> None:
        """Queue right behind *other*."""
        self.before, self.after = other, other.after
        self.after.before = other.after = self

    def leave(self) -> None:
        """Get out of the queue."""
        self.before.after, self.after.before = self.after, self.before
        del self.before, self.after  # or one that is used for long keeps all alive that stood behind it


class HeldRun(Run):
    """A run and the extents that hold it, those that came first before the others.

    Requests that compute equal tokens at the same time fill blocks of their own; a hit takes the first.
    """

    __slots__ = ("copies",)

    def __init__(self, source: Holding, start: int, end: int, parent: "HeldRun | None"):
        super().__init__(source, start, end, parent)
        self.copies: list[Extent] = []

    def held_by(self, user: Holding) -> Extent:
        """The extent that *user* uses."""
        copies = self.copies
        return copies[0] if len(copies) == 1 else next(extent for extent in copies if user in extent.users)

    def part(self, place: int) -> "HeldRun":
        """The run up to *place*, whose blocks are used by whom these are, and wait right behind them."""
        first = HeldRun(self.source, self.start, place, self.parent)
        for extent in self.copies:
            beginning = Extent(first, set(extent.users))
            first.copies.append(beginning)
            if not extent.users:
                beginning.follow(extent)
        return first


@define(eq=False)
class ExtentPool:
    """Of `capacity` blocks `free` ones can be had: `blank` ones, which come first, and the queue, but for `owed` ones.

    Those are taken, but what they held is not yet forgotten.
    """

    capacity: int
    free: int = field(init=False)
    blank: int = field(init=False)
    owed: int = field(default=0, init=False)
    _ends: Extent = field(init=False)  # comes before the first of the queue, and after the last

    def __attrs_post_init__(self) -> None:
        self.free = self.blank = self.capacity
        self._ends = Extent(HeldRun(Holding(), 0, 0, None), set())

    @property
    def used(self) -> int:
        return self.capacity - self.free

    @property
    def first(self) -> Extent:
        """The extent whose last block is the next of the queue to be taken; there must be one."""
        return self._ends.after

    def take(self, blocks: int) -> bool:
        """Take *blocks* from the front; all or nothing."""
        if blocks > self.free:
            return False
        self.free -= blocks
        self.blank -= blocks
        if self.blank < 0:
            self.owed -= self.blank
            self.blank = 0
        return True

    def to_front(self, blocks: int) -> None:
        """Give back *blocks* that hold nothing, to be taken next; none may be owed."""
        self.free += blocks
        self.blank += blocks

    def to_back(self, extent: Extent, blocks: int) -> None:
        """Queue the *blocks* of *extent*, which nobody uses any more."""
        self.free += blocks
        extent.follow(self._ends.before)

    def revive(self, extent: Extent, blocks: int) -> None:
        """Take the *blocks* of *extent* out of the queue, for what they hold."""
        self.free -= blocks
        extent.leave()
