"""Stores of KV chunks below the GPU's cache: what is in them, what may be lost, and what is let in.

A `ChunkStore` is host memory.  A `SecondaryTier` is a disk or storage behind it, and `TierThreads` read and write it.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Protocol

from attrs import define, field

from ksim.kv.offload.evictions import ChunkEviction, RequestAccess
from ksim.network.network import FleetNetwork
from ksim.scheduling.job import Job

__all__ = ["SecondaryTier", "TierJob", "TierThreads", "COUNTED", "StoreListener", "OfferCounts", "ChunkStore"]


#: How many keys vLLM counts offers of (`max_tracker_size`).
COUNTED = 64_000
#: Users of a chunk that is being stored.
_STORING = -1


class StoreListener(Protocol):
    """Whoever keeps an index of a store; vLLM publishes the last two as KV events."""

    def taken(self, keys: Sequence[int]) -> None:
        """Chunks have been given room, and will be stored."""
        ...

    def stored(self, keys: Sequence[int]) -> None:
        """Chunks are ready."""
        ...

    def evicted(self, keys: Sequence[int]) -> None:
        """Chunks are gone."""
        ...


@define(eq=False)
class OfferCounts:
    """How often keys were offered to a store that takes only what was offered `threshold` times.

    Of the keys that were offered longest ago, it forgets those beyond the first `capacity`.
    """

    threshold: int
    capacity: int = COUNTED
    _counts: OrderedDict[int, int] = field(factory=OrderedDict, init=False)

    def offer(self, keys: Sequence[int]) -> None:
        """Count an offer of *keys*, and forget none of them for it."""
        counts, known = self._counts, 0
        for key in keys:
            if key in counts:
                counts[key] += 1
                counts.move_to_end(key)
                known += 1
        forgettable = len(counts) - known
        for key in keys:
            if key not in counts:
                if len(counts) >= self.capacity:
                    if not forgettable:
                        continue
                    counts.popitem(last=False)
                    forgettable -= 1
                counts[key] = 1

    def suffice(self, key: int) -> bool:
        """Whether *key* was offered often enough."""
        return self._counts.get(key, 0) >= self.threshold


@define(eq=False)
class ChunkStore:
    """Holds `capacity` chunks, known by their keys; vLLM's `CPUOffloadingManager`.

    A chunk is in the store from when it is given room: at first it is being stored, then it is ready.  Chunks that
    loads use are pinned.  Only ready ones that nobody uses are evicted.  Where it has `counts`, it takes only what was
    offered often enough.
    """

    capacity: int
    eviction: ChunkEviction
    counts: OfferCounts | None = None
    listener: StoreListener | None = None
    storing: int = field(default=0, init=False)
    #: Counts what may make room for an offer that was refused.
    changes: int = field(default=0, init=False)
    _users: dict[int, int] = field(factory=dict, init=False)
    _idle: int = field(default=0, init=False)

    def __len__(self) -> int:
        """How many chunks have room in it, ready or not."""
        return len(self._users)

    def __contains__(self, key: object) -> bool:
        return key in self._users

    def is_ready(self, key: int) -> bool:
        """Whether the chunk *key* is there, and not only being stored."""
        return self._users.get(key, _STORING) != _STORING

    def is_idle(self, key: int) -> bool:
        """Whether the chunk *key* could be evicted."""
        return self._users.get(key) == 0

    def leading(self, keys: Sequence[int]) -> tuple[int, bool]:
        """How many of *keys*, from the first on, are in the store, and whether all of these are ready.  A lookup moves
        no chunk in any order."""
        ready = True
        for place, key in enumerate(keys):
            users = self._users.get(key)
            if users is None:
                return place, ready
            ready = ready and users != _STORING
        return len(keys), ready

    def refuses_again(self, changes: int) -> bool:
        """Whether an offer that was refused when `changes` was so many would be refused again, and change nothing."""
        return changes == self.changes and self.counts is None

    # Loads.

    def pin(self, keys: Sequence[int], access: RequestAccess, first: int) -> None:
        """Keep the ready chunks *keys* while a request loads them; *first* is the place of the first of them in it."""
        for key in keys:
            assert self.is_ready(key), "only chunks that are ready are loaded"
            self._idle -= not self._users[key]
            self._users[key] += 1
        self._note(keys, access, first)
        access.reused.update(key for key in keys if key not in access.inserted)

    def hold(self, keys: Sequence[int]) -> None:
        """Keep the ready chunks *keys* until they are unpinned, which counts as no use of them."""
        for key in keys:
            assert self.is_ready(key), "only chunks that are ready are read"
            self._idle -= not self._users[key]
            self._users[key] += 1

    def unpin(self, keys: Sequence[int]) -> None:
        """A load of *keys* has ended."""
        for key in keys:
            assert self._users[key] > 0, "a load ended that had not begun"
            self._users[key] -= 1
            self._idle += not self._users[key]
        self.changes += 1

    # Stores.

    def offer(self, keys: Sequence[int], access: RequestAccess, first: int) -> list[int] | None:
        """Offer the chunks *keys* of a request, of which the first has the place *first*; return those that it takes,
        or None if it lacks room for them."""
        if self.counts is not None:
            self.counts.offer(keys)
        wanted = [key for key in keys if key not in self._users and (self.counts is None or self.counts.suffice(key))]
        reused = [key for key in keys if self._users.get(key, _STORING) != _STORING]
        if missed := [key for key in wanted if key not in access.missed]:
            access.missed.update(missed)
            self.eviction.missed(missed, access)
        taking = {*wanted, *reused}
        self._note(keys, access, first, taking)
        access.reused.update(key for key in reused if key not in access.inserted)
        if not self._make_room(len(wanted), keys):
            return None
        for key in wanted:
            self._users[key] = _STORING
            self.eviction.insert(key, access)
        self.storing += len(wanted)
        self.changes += bool(wanted)
        access.inserted.update(wanted)
        if wanted and self.listener is not None:
            self.listener.taken(wanted)
        return wanted

    def stored(self, keys: Sequence[int]) -> None:
        """The chunks *keys* are stored, and ready."""
        for key in keys:
            self._users[key] = 0
        self.storing -= len(keys)
        self._idle += len(keys)
        self.changes += 1
        if self.listener is not None:
            self.listener.stored(keys)

    def close(self, access: RequestAccess) -> None:
        """A request has ended, and its last stores have begun."""
        self.eviction.close(access)

    def _note(self, keys: Sequence[int], access: RequestAccess, first: int, among: set[int] | None = None) -> None:
        """Note that a request was seen with *keys*, or with those *among* them."""
        new = {key: place for place, key in enumerate(keys, first)
               if key not in access.seen and (among is None or key in among)}
        if new:
            access.seen.update(new)
            self.eviction.seen([*new], access)

    def _make_room(self, chunks: int, spared: Sequence[int]) -> bool:
        """Evict until there is room for so many *chunks*, but none that is *spared*; return whether there is."""
        missing = chunks - (self.capacity - len(self._users))
        if not chunks or missing <= 0:
            return True
        if missing > self._idle:
            return False
        kept = set(spared)
        evicted = self.eviction.evict(missing, lambda key: not self._users[key] and key not in kept)
        if evicted is None:
            return False
        for key in evicted:
            del self._users[key]
        self._idle -= len(evicted)
        if self.listener is not None:
            self.listener.evicted(evicted)
        return True


@define(eq=False)
class SecondaryTier:
    """The chunks that the disks of a node ("disk") or the storage of a fleet ("storage") have.

    Engines share it, as vLLM's instances share a directory.  vLLM never deletes; ksim forgets the chunks that were used
    longest ago beyond `capacity` chunks.
    """

    shared: ClassVar[bool] = True

    name: str
    end: str
    capacity: int | None = None
    listener: StoreListener | None = None
    _keys: OrderedDict[int, None] = field(factory=OrderedDict, init=False)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def touch(self, keys: Iterable[int]) -> None:
        """Chunks are read."""
        for key in keys:
            if key in self._keys:
                self._keys.move_to_end(key)

    def add(self, keys: Sequence[int]) -> None:
        """Chunks are written."""
        new, gone = [key for key in keys if key not in self._keys], list[int]()
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while self.capacity is not None and len(self._keys) > self.capacity:
            gone.append(self._keys.popitem(last=False)[0])
        if self.listener is not None:
            self.listener.taken(new)
            self.listener.stored(new)
            self.listener.evicted(gone)


@define(eq=False)
class TierJob:
    """Chunks of a request on their way from a tier to host memory, if it `promotes`, or from there to a tier."""

    job: Job
    tier: SecondaryTier
    keys: Sequence[int]
    promotes: bool
    asked: float = 0.0
    began: float = 0.0


@define(eq=False, kw_only=True)
class TierThreads:
    """vLLM's thread pool of one tier and engine (tiering/fs/thread_pool.py); a thread carries one job at a time.

    So many threads `read` first, and `write` only where nothing is to be read; others the reverse.
    """

    network: FleetNetwork
    host: str
    chunk_bytes: float
    read: int
    write: int
    on_end: Callable[[TierJob], object] = field(default=lambda job: None)
    _reads: deque[TierJob] = field(factory=deque, init=False)
    _writes: deque[TierJob] = field(factory=deque, init=False)
    _busy: dict[bool, int] = field(factory=lambda: {True: 0, False: 0}, init=False)  # threads that read first, or not

    def submit(self, job: TierJob, moment: float) -> None:
        """Hand in *job* at *moment*."""
        job.asked = moment
        self.network.at(moment, lambda: self._enqueue(job))

    def _enqueue(self, job: TierJob) -> None:
        (self._reads if job.promotes else self._writes).append(job)
        for reads_first in (job.promotes, not job.promotes):
            if self._busy[reads_first] < (self.read if reads_first else self.write):
                self._busy[reads_first] += 1
                self._take(reads_first)
                return

    def _take(self, reads_first: bool) -> None:
        """A thread takes its next job."""
        first, second = (self._reads, self._writes) if reads_first else (self._writes, self._reads)
        if not (first or second):
            self._busy[reads_first] -= 1
            return
        job = (first or second).popleft()
        job.began = self.network.env.now
        ends = (job.tier.end, self.host) if job.promotes else (self.host, job.tier.end)
        flow = self.network.copy(len(job.keys) * self.chunk_bytes, *ends)
        flow.done.callbacks.append(lambda _: self._ended(job, reads_first))

    def _ended(self, job: TierJob, reads_first: bool) -> None:
        if not job.promotes:
            job.tier.add(job.keys)
        self.on_end(job)
        self._take(reads_first)
