"""The workers' side of offloading to several tiers: copies beside the steps, and reads and writes beside those."""

from collections import deque
from collections.abc import Mapping
from math import inf

import simpy
from attrs import define, field

from ksim.kv_offload.sharing_worker import SharingWorker
from ksim.kv_offload.tiered.connector import TieredConnector
from ksim.kv_offload.tiers import SecondaryTier, TierJob, TierThreads
from ksim.scheduling.schedule import Schedule

__all__ = ["TieredWorker"]


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
