"""The workers' side of HiCache with storage: reads and writes of pages, beside the steps and the copies to GPUs."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf

import simpy
from attrs import define, field

from ksim.kv.offload.hicache.connector import BATCH, HicacheConnector, PageStorage, Prefetches, StorageJob
from ksim.kv.offload.worker import SharingWorker
from ksim.network.network import FleetNetwork
from ksim.scheduling.job import Schedule

__all__ = ["HicacheWorker", "StorageThread"]


@define(eq=False, kw_only=True)
class StorageThread:
    """A thread that reads pages from `storage` to the memory of the node `host`, or writes them, one job at a time.

    It tells `on_batch` how many pages of a job have moved, and `on_end` when the job is over, with the bytes that were
    copied and since when.
    """

    network: FleetNetwork
    storage: PageStorage
    host: str
    page_bytes: float
    on_batch: Callable[[StorageJob, int], object]
    on_end: Callable[[StorageJob, float, float, float], object]
    _waiting: deque[tuple[StorageJob, float]] = field(factory=deque, init=False)
    _job: StorageJob | None = field(default=None, init=False)
    _asked: float = field(default=0.0, init=False)
    _began: float = field(default=0.0, init=False)
    _place: int = field(default=0, init=False)  # of the job's next page
    _bytes: float = field(default=0.0, init=False)
    _left: int = field(default=0, init=False)  # flows of the batch under way

    def submit(self, job: StorageJob, moment: float) -> None:
        """Hand in *job* at *moment*."""
        self.network.at(moment, lambda: self._enqueue(job, moment))

    def _enqueue(self, job: StorageJob, moment: float) -> None:
        self._waiting.append((job, moment))
        if self._job is None:
            self._next()

    def _next(self) -> None:
        while self._waiting and self._job is None:
            self._job, self._asked = self._waiting.popleft()
            self._began, self._place, self._bytes = self.network.env.now, 0, 0.0
            self._go_on(self._job)

    def _go_on(self, job: StorageJob) -> None:
        """Move the next batch of *job* for which anything has to move, or end it."""
        while not job.stopped and self._place < len(job.keys):
            batch = job.keys[self._place: self._place + BATCH]
            self._place += len(batch)
            if self._begin(job, batch):
                return
        self._job = None
        self.on_end(job, self._asked, self._began, self._bytes)

    def _begin(self, job: StorageJob, batch: Sequence[int]) -> bool:
        """Begin to move *batch*; return whether there is anything to move."""
        moving: Sequence[int] = batch
        ends: Mapping[str, int] = {}
        if job.reads:
            there = self.storage.leading(batch)
            if there < len(batch):  # the rest is lost
                self._place, moving = len(job.keys), batch[:there]
            if moving:
                ends = self.storage.begin_read(moving)
        else:
            moving, ends = self.storage.begin_write(batch)
        self._left = len(ends)
        for end, pages in ends.items():
            flow = self.network.copy(pages * self.page_bytes, *((end, self.host) if job.reads else (self.host, end)))
            self._bytes += flow.size
            flow.done.callbacks.append(lambda _: self._part_ended(job, moving))
        return bool(ends)

    def _part_ended(self, job: StorageJob, moving: Sequence[int]) -> None:
        self._left -= 1
        if self._left:
            return
        (self.storage.end_read if job.reads else self.storage.end_write)(moving)
        self.on_batch(job, len(moving))
        self._go_on(job)
        self._next()


@define(eq=False, kw_only=True)
class HicacheWorker(SharingWorker):
    """Tells the scheduler of pages that have moved when it begins a schedule, and of the time."""

    connector: HicacheConnector
    prefetches: Prefetches
    page_bytes: float
    host: str
    _reader: StorageThread = field(init=False)
    _writer: StorageThread = field(init=False)
    _moved: deque[tuple[float, StorageJob, int]] = field(factory=deque, init=False)  # pages; -1 for an end
    _busy: int = field(default=0, init=False)  # jobs that the scheduler takes to be under way
    _alarm: float = field(default=inf, init=False)  # when to wake the engine next

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._reader, self._writer = (StorageThread(
            network=self.network, storage=self.prefetches.storage, host=self.host, page_bytes=self.page_bytes,
            on_batch=self._batch_ended, on_end=self._job_ended) for _ in range(2))

    def begin_turn(self, now: float) -> None:
        while self._moved and self._moved[0][0] <= now:
            _, job, pages = self._moved.popleft()
            if pages < 0:
                self._busy -= 1
                self.prefetches.ended(job)
            else:
                self.prefetches.moved(job, pages)
        self.prefetches.begin_turn(now)
        for job in self.prefetches.begun:
            self._busy += 1
            (self._reader if job.reads else self._writer).submit(job, now)
        self.prefetches.begun.clear()

    def launch(self, schedule: Schedule, scheduled: float, moment: float,
               computed: float | simpy.Event | None = None) -> None:
        super().launch(schedule, scheduled, moment, computed)
        alarm = self.prefetches.due
        if alarm != self._alarm and alarm < inf:
            self.network.at(alarm, self._ring)
        self._alarm = alarm

    def _ring(self) -> None:
        self.wake()

    def _batch_ended(self, job: StorageJob, pages: int) -> None:
        self._moved.append((self.network.env.now, job, pages))

    def _job_ended(self, job: StorageJob, asked: float, began: float, size: float) -> None:
        now, tier = self.network.env.now, self.prefetches.storage.name
        self._moved.append((now, job, -1))
        if size:
            ends, pages = (tier, "cpu") if job.reads else ("cpu", tier), round(size / self.page_bytes)
            self._log_copy(job.job, ends, (asked, began), size, pages * self.prefetches.keys.block_tokens)
        self.wake()

    @property
    def awaiting(self) -> bool:
        return super().awaiting or bool(self._busy or self.prefetches.begun or self.prefetches.unanswered)

    @property
    def due(self) -> float:
        if self.prefetches.unanswered or self.prefetches.begun:
            return 0.0
        ended = next((time for time, _, pages in self._moved if pages < 0), inf)
        return min(super().due, ended, self.prefetches.due)
