"""SGLang's scheduler of an engine with sliding windows: what their pool allows, and when slots of it are freed.

The rules are those of SWAPrefillBudget and maybe_evict_swa (SGLang 0.5.23, srt/mem_cache/prefill_budget.py and
srt/managers/schedule_batch.py).
"""

from collections.abc import Sequence
from typing import ClassVar, cast

from attrs import define, field

from ksim.kv.cache.radix import RadixCache
from ksim.kv.cache.sglang import LockedNode
from ksim.kv.cache.window_radix import WindowRadixCache, WindowTable
from ksim.scheduling.job import Job, Schedule, State
from ksim.scheduling.sglang.drafts import DraftBatch, SglangDraftScheduler
from ksim.scheduling.sglang.prefill_pass import CLIP, PrefillPass
from ksim.scheduling.sglang.running_batch import RunningBatch
from ksim.scheduling.sglang.scheduler import SglangScheduler

__all__ = ["SglangWindowDraftScheduler", "SglangWindowScheduler"]

#: Slots of a job that decodes are freed when its window has passed so many tokens (SGLANG_SWA_EVICTION_INTERVAL).
INTERVAL = 128


@define(eq=False)
class WindowPass(PrefillPass):
    """A pass that also asks for room in the pool of the window layers, of which `window_taken` is set aside."""

    window_taken: int = field(default=0, init=False)

    @property
    def cache(self) -> WindowRadixCache:
        return _windows(self.batch.cache)

    @property
    def window_left(self) -> int:
        cache = self.cache
        return cache.free_window_tokens() + cache.evictable_window_tokens() - self.window_taken

    @property
    def _has_memory(self) -> bool:
        return super()._has_memory and self.window_left > 0

    def _needs(self, tokens: int, new: int) -> int:
        """What a prompt of *tokens* tokens to compute needs there, with *new* ones to come."""
        window = self.cache.window
        at_once = tokens if self.chunk is None else min(tokens, self.chunk)
        return max(at_once - window, 0) + min(tokens + new, window) + self.cache.block_tokens

    def _room(self) -> int | None:
        assert self.chunk is not None, "a prompt is cut only where there are chunks"
        room = min(self.chunk, int(self.memory), self.window_left - self.cache.block_tokens)
        return room if room > 0 else None

    def _most(self, tokens: int, new: int, node: LockedNode) -> float | None:
        most, cache = super()._most(tokens, new, node), self.cache
        if most is None:
            return None
        page = cache.block_tokens
        left, needed = self.window_left - cache.locked_window(node) * page, self._needs(self.pages(tokens), new)
        if needed < left:
            return most
        if self.chunk is None or needed < cache.window_capacity * page:
            return None
        spare = (left - self._needs(0, new)) // page * page  # it never fits but in smaller chunks
        return min(most, spare) if spare > 0 else None

    def _holds(self, job: Job, paged: int) -> bool:
        needed = self._needs(job.num_tokens, min(max(job.limit - job.sampled, 0), CLIP))
        return super()._holds(job, paged) and needed <= self.window_left

    def _outlasts(self, free: int) -> bool:
        return True

    def _admit(self, job: Job, before: int, tokens: int, new: int) -> None:
        self.window_taken += self._needs(self.pages(tokens), new)
        super()._admit(job, before, tokens, new)


@define(eq=False)
class WindowBatch(RunningBatch):
    """Knows before which decodes slots of its jobs' windows are due to be freed."""

    _due: dict[int, list[Job]] = field(factory=dict, init=False)  # by the number of decodes before

    def join(self, jobs: Sequence[Job]) -> None:
        super().join(jobs)
        for job in jobs:
            self._plan(job, self.launched)

    def dissolve(self) -> list[Job]:
        self._due.clear()
        return super().dissolve()

    def _plan(self, job: Job, first: int) -> None:
        """Note when slots of *job* can be due, after *first* decodes or more."""
        table, computed = _table(job), job.num_computed_tokens + self.launched - job.start
        passed = computed - _windows(self.cache).window - table.slid
        due = self.launched + max(table.prefilled + 1 - computed, INTERVAL - passed)
        self._due.setdefault(max(due, first), []).append(job)

    def slide(self) -> None:
        """Free what the windows of its jobs have passed, before a decode."""
        for job in self._due.pop(self.launched, ()):
            if job.in_decode_set and job.state is State.RUNNING and not self._leaves(job):
                known = job.request.prompt + self.sampled(job) - 1
                _windows(self.cache).slide(_table(job), known, INTERVAL)
                self._plan(job, self.launched + 1)

    def _leaves(self, job: Job) -> bool:
        return self.foresees and job.final <= self.launched


@define(eq=False)
class SglangWindowScheduler(SglangScheduler):
    """A scheduler whose `cache` has a pool for the window layers; it looks at the queue in every turn."""

    batch: "WindowBatch | WindowDraftBatch" = field(init=False)

    _pass: ClassVar[type[PrefillPass]] = WindowPass
    _ignores_queue: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.batch = WindowBatch(self.cache, self.limits.async_scheduling)

    def _prefill(self) -> Schedule | None:
        self.batch.full = False
        return super()._prefill()

    def _start(self, job: Job, before: int, tokens: int, schedule: Schedule) -> None:
        table = _table(job)
        if not self.cache.prefix_caching:
            self._slide_prompt(table, before)
        super()._start(job, before, tokens, schedule)
        table.prefilled, table.chunks = before + tokens, table.chunks + 1

    def _slide_prompt(self, table: WindowTable, computed: int) -> None:
        """Free what the window of a prompt has passed; with overlap, its last chunk is not computed yet."""
        if not self.limits.async_scheduling:
            _windows(self.cache).slide(table, computed)
        elif table.chunks >= 2:
            _windows(self.cache).slide(table, computed - max(self.limits.chunked_prefill_size, 0))

    def _room_for_decode(self) -> None:
        self.batch.slide()
        super()._room_for_decode()

    @property
    def _free_pages(self) -> int:
        cache = _windows(self.cache)
        return min(cache.pool.free, cache.window_pool.free)

    def repeat(self) -> bool:
        batch, cache = self.batch, _windows(self.cache)
        if self._free_pages < len(batch):
            return False
        batch.full = False
        cache.make_room(batch.pages() * cache.block_tokens)
        batch.returned = max(batch.returned, batch.launched - self.limits.async_scheduling)
        return super().repeat()


@define(eq=False)
class WindowDraftBatch(DraftBatch):
    """Jobs that verify drafts, none of which is foreseen: before each decode all are asked."""

    def slide(self) -> None:
        """Free what the windows of its jobs have passed, before a decode that is not their first."""
        for job in self.jobs:
            table = _table(job)
            if job.num_tokens + job.num_output_placeholders - 1 > table.prefilled:
                _windows(self.cache).slide(table, job.num_tokens - 1, INTERVAL)


@define(eq=False)
class SglangWindowDraftScheduler(SglangWindowScheduler, SglangDraftScheduler):
    """A scheduler with both: drafts, and a pool for the window layers."""

    batch: WindowDraftBatch = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.batch = WindowDraftBatch(self.cache, self.limits.async_scheduling, slots=self.slots)


def _windows(cache: RadixCache) -> WindowRadixCache:
    return cast(WindowRadixCache, cache)


def _table(job: Job) -> WindowTable:
    return cast(WindowTable, job.block_table)
