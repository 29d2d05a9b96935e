"""Offloading to several tiers: host memory first, disks and storage behind it.

The scheduler's side is vLLM's TieringOffloadingManager (v1/kv_offload/tiering).  The workers' side copies beside the
steps, and reads and writes beside those copies.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import inf

import simpy
from attrs import define, field

from ksim.kv.offload.connector import OffloadConnector
from ksim.kv.offload.store import SecondaryTier, TierJob, TierThreads
from ksim.kv.offload.worker import SharingWorker
from ksim.scheduling.connector import Contents
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Copy, Job, Load, Schedule

__all__ = ["TieredConnector", "TieredWorker"]


@define(eq=False)
class TieredConnector(OffloadConnector):
    """What is stored in host memory is written to all `tiers`, too; what only they have comes back by way of it.

    A lookup in a tier is answered in the next schedule, and a request waits while its chunks are read.  A chunk is read
    once for a request: if it is lost again before the load begins, it counts as absent.
    """

    tiers: Sequence[SecondaryTier] = field(kw_only=True)
    #: Reads and writes to begin: reads with the schedule that found them, writes before the next one.
    reads: list[TierJob] = field(factory=list, init=False)
    writes: list[TierJob] = field(factory=list, init=False)
    #: Requests whose lookups are under way.
    asked: set[Job] = field(factory=set, init=False)
    #: The tokens of a load, by its number, that came from tiers behind host memory, by their names.
    origins: dict[int, Mapping[str, int]] = field(factory=dict, init=False)
    _answered: set[Job] = field(factory=set, init=False)
    _read: dict[Job, dict[int, str]] = field(factory=dict, init=False)  # chunks read for a request, and from where
    _writing: set[tuple[str, int]] = field(factory=set, init=False)

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        tokens, asynchronous = super().external_tokens(job, computed)
        if tokens is None or not job.reads_cache or not self._reads_more(job, computed):
            return tokens, asynchronous
        return None, True

    def _reads_more(self, job: Job, computed: int) -> bool:
        """Whether chunks after those in host memory are read from tiers, or looked up there."""
        record, chunk = self._of(job), self._chunk_tokens
        first = computed // chunk
        wanted = record.keys[first: job.num_tokens // chunk]
        hits, _ = self.store.leading(wanted)
        rest = wanted[hits:]
        if not rest or (tier := self._holder(job, rest[0])) is None:
            return False
        if job not in self._answered:
            self.asked.add(job)
            return True
        found: dict[SecondaryTier, list[int]] = {}
        for index, key in enumerate(rest, first + hits):
            if key in self.store:
                continue
            if (tier := self._holder(job, key)) is None or not self.store.offer([key], record.access, index):
                break
            found.setdefault(tier, []).append(key)
        for tier, keys in found.items():
            tier.touch(keys)
            self._read.setdefault(job, {}).update(dict.fromkeys(keys, tier.name))
            self.reads.append(TierJob(job, tier, keys, promotes=True))
        return bool(found)

    def _holder(self, job: Job, key: int) -> SecondaryTier | None:
        """The first tier that has *key*, unless it was read for *job* before."""
        if key in self._read.get(job, ()):
            return None
        return next((tier for tier in self.tiers if key in tier), None)

    @property
    def contents(self) -> Contents:
        return {"cpu": self.store, **{tier.name: tier for tier in self.tiers}}

    @property
    def chunk_tokens(self) -> int:
        return self._chunk_tokens

    def answer(self) -> None:
        """The lookups under way are answered."""
        self._answered |= self.asked
        self.asked.clear()

    def begin(self, load: Load) -> None:
        super().begin(load)
        read = self._read.pop(load.job, {})
        if load.tokens and read:
            copy, size, tokens = self._begun[-1], self._chunk_tokens, dict[str, int]()
            for index, key in zip(copy.chunks, copy.keys, strict=True):
                if key in read:
                    loaded = size - max(0, load.start - index * size)
                    tokens[read[key]] = tokens.get(read[key], 0) + loaded
            self.origins[copy.number] = tokens

    def holds(self, job: Job, complete: bool) -> bool:
        for jobs in (self.asked, self._answered):
            jobs.discard(job)
        self._read.pop(job, None)
        return super().holds(job, complete)

    def take(self, numbers: Sequence[int]) -> None:
        copies = [self._copies[number] for number in numbers]
        super().take(numbers)
        for copy in copies:
            if not copy.loads:
                self._write(copy)

    def _write(self, copy: Copy) -> None:
        """Have what has been stored in host memory written to all tiers that lack it."""
        for tier in self.tiers:
            keys = [key for key in copy.keys if key not in tier and (tier.name, key) not in self._writing]
            if keys:
                self.store.hold(keys)
                self._writing.update((tier.name, key) for key in keys)
                self.writes.append(TierJob(copy.job, tier, keys, promotes=False))

    def quiet_steps(self, decodes: DecodeSet, step: int) -> int:
        return 0 if self.refused and self._writing else super().quiet_steps(decodes, step)  # a write may make room

    def ended(self, job: TierJob) -> None:
        """Chunks were read, and are ready in host memory, or were written, and need not stay there."""
        if job.promotes:
            self.store.stored(job.keys)
        else:
            self.store.unpin(job.keys)
            self._writing.difference_update((job.tier.name, key) for key in job.keys)


@define(eq=False, kw_only=True)
class TieredWorker(SharingWorker):
    """Reads from tiers begin when a schedule has found what they have, writes when host memory has it.

    The scheduler learns of their ends when it begins a schedule.
    """

    connector: TieredConnector
    threads: Mapping[SecondaryTier, TierThreads]
    _over: deque[tuple[float, TierJob]] = field(factory=deque, init=False)  # ended, and not told to the scheduler
    _reading: int = field(default=0, init=False)  # reads that the scheduler takes to be under way

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for threads in self.threads.values():
            threads.on_end = self._job_ended

    def begin_turn(self, now: float) -> None:
        while self._over and self._over[0][0] <= now:
            job = self._over.popleft()[1]
            self._reading -= job.promotes
            self.connector.ended(job)
        self.connector.answer()
        self._begin(self.connector.writes, now)

    def launch(self, schedule: Schedule, scheduled: float, moment: float,
               computed: float | simpy.Event | None = None) -> None:
        super().launch(schedule, scheduled, moment, computed)
        self._reading += len(self.connector.reads)
        # Whoever steps by events is told of an empty batch, or one that waits for copies, when the workers have it.
        self._begin(self.connector.reads, scheduled if schedule and not schedule.hurried else moment)

    def _begin(self, jobs: list[TierJob], moment: float) -> None:
        for job in jobs:
            self.threads[job.tier].submit(job, moment)
        jobs.clear()

    def _job_ended(self, job: TierJob) -> None:
        now, threads = self.network.env.now, self.threads[job.tier]
        self._over.append((now, job))
        ends = (job.tier.name, "cpu") if job.promotes else ("cpu", job.tier.name)
        self._log_copy(job.job, ends, (job.asked, job.began), len(job.keys) * threads.chunk_bytes,
                       len(job.keys) * self.connector.chunk_tokens)
        if job.promotes:
            self.wake()

    @property
    def awaiting(self) -> bool:
        return super().awaiting or bool(self.connector.asked or self._reading)

    @property
    def due(self) -> float:
        if self.connector.asked:
            return 0.0
        first = next((time for time, job in self._over if job.promotes), inf)
        return min(super().due, first)
