"""Tiers behind host memory: which chunks they have, and the threads that read and write them."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from attrs import define, field

from ksim.kv_offload.store import StoreListener
from ksim.network.fleet_network import FleetNetwork
from ksim.scheduling.job import Job

__all__ = ["SecondaryTier", "TierJob", "TierThreads"]


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
