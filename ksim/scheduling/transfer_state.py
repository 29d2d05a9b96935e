"""The jobs of an engine whose keys and values are on their way: in, or out."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from attrs import define, field

from ksim.kv_cache.cache import Cache
from ksim.scheduling.job import Job, State


@define(eq=False)
class TransferState:
    """Which jobs of a scheduler with a KV connector load or send; vLLM's `Scheduler` has several sets for that.

    The loads of `received` jobs have ended.  `held` jobs have ended themselves while their blocks must stay: until they
    are sent, or their load has ended.  `unfinished` jobs are in the middle of their prompt, or load a part of it: other
    loads must leave them room.  Blocks of jobs in `deferred_frees` are freed once a batch is back, as in vLLM.
    """

    cache: Cache
    received: set[Job] = field(factory=set)
    held: dict[Job, None] = field(factory=dict)
    unfinished: dict[Job, None] = field(factory=dict)
    deferred_frees: deque[tuple[int, Job]] = field(factory=deque)

    def forget(self, job: Job) -> None:
        """Forget *job*, which has ended, except that it may hold blocks."""
        self.received.discard(job)
        self.unfinished.pop(job, None)

    def begin(self, job: Job, extra: int) -> None:
        """Note that *job* loads.  One that holds blocks for all its tokens, and *extra* ones, will need no more."""
        if self._missing(job, extra):
            self.unfinished[job] = None

    def end_held(self, jobs: Sequence[Job]) -> None:
        """Free the blocks of those of *jobs* that hold them after their end."""
        for job in jobs:
            if job in self.held:
                del self.held[job]
                self.cache.free(job.block_table)

    def receive(self, jobs: Sequence[Job]) -> None:
        """Note that the loads of *jobs* have ended."""
        self.received.update(job for job in jobs if job.state is State.LOADING)
        self.end_held(jobs)

    def free_deferred(self, number: int) -> bool:
        """Free the blocks that wait for the schedule of that *number* to be back; return whether there were some."""
        due = bool(self.deferred_frees) and self.deferred_frees[0][0] <= number
        while self.deferred_frees and self.deferred_frees[0][0] <= number:
            self.cache.free(self.deferred_frees.popleft()[1].block_table)
        return due

    def reserved(self, extra: int) -> int:
        """How many free blocks the unfinished jobs need for their tokens, and for *extra* tokens each."""
        return sum(self._missing(job, extra) for job in self.unfinished) + self.cache.blocks(extra)

    def _missing(self, job: Job, extra: int) -> int:
        return max(0, self.cache.blocks(job.num_tokens + extra) - self.cache.held_blocks(job.block_table))


@define(eq=False)
class InvalidBlocks:
    """The blocks that could not be loaded (vLLM's invalid blocks), at the `places` of the jobs that loaded them.

    One that two jobs share is charged to the first of them, which will compute it again for both.
    """

    cache: Cache
    places: Mapping[Job, Sequence[int]]
    _charged: set[tuple[Job, int]] = field(factory=set)

    def charge(self, job: Job, blocks: int) -> tuple[bool, int | None]:
        """Whether any of the first *blocks* blocks of *job* is bad, and the place of the first that is charged to
        it."""
        hits = sorted(self._among(job, blocks), key=lambda bad: bad[1])
        new = [bad for bad in hits if bad not in self._charged]
        self._charged.update(new)
        return bool(hits), new[0][1] if new else None

    def _among(self, job: Job, blocks: int) -> Iterator[tuple[Job, int]]:
        for origin, places in self.places.items():
            for place in places:
                if place < blocks and self.cache.same_block(origin.block_table, job.block_table, place):
                    yield origin, place
