"""SGLang's scheduler of an engine that decodes speculatively: each decode verifies drafted tokens beside a known one.

The rules are those of spec v2 with EAGLE (SGLang 0.5.23, srt/speculative/eagle_utils.py, srt/managers/schedule_batch.py
and batch_result_processor.py).  How many tokens a decode yields is known when its result is taken in, so jobs are
counted one by one.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from attrs import define, field

from ksim.flow.batch import Offsets
from ksim.scheduling.draft_scheduler import DraftSchedule
from ksim.scheduling.job import Job, Schedule, ScheduledTokens, State
from ksim.scheduling.sglang.running_batch import RunningBatch
from ksim.scheduling.sglang.scheduler import SglangScheduler

__all__ = ["DraftBatch", "SglangDraftScheduler", "Verifications", "draft_slots"]


class Verifications(Protocol):
    """What the scheduler asks of a `Speculation`."""

    @property
    def k(self) -> int:
        """How many tokens a drafter proposes a decode."""
        ...

    def accepted(self, job: Job, drafts: int) -> int:
        """How many of *drafts* drafted tokens of *job*, in the batch just made, the model accepts."""
        ...


def draft_slots(steps: int, topk: int, draft_tokens: int, page: int) -> int:
    """How many slots a job is given beyond its committed tokens before a decode: for two verifications.

    The names are those of `speculative_num_steps`, `speculative_eagle_topk` and `speculative_num_draft_tokens`.
    """
    if page == 1 or topk == 1:
        return 2 * max(steps * topk, draft_tokens)
    branch = -(-(page - 1 + steps) // page) * page  # a branch begins anywhere within a page
    return 2 * max(branch * topk, draft_tokens)


@define(eq=False)
class DraftBatch(RunningBatch):
    """The jobs that decode, none of which is foreseen: before a decode each has `slots` beyond its committed tokens."""

    slots: int = field(default=0, kw_only=True)

    def join(self, jobs: Sequence[Job]) -> None:
        self.jobs += jobs

    def drop(self, jobs: Iterable[Job]) -> int:
        gone, before = set(jobs), len(self.jobs)
        self.jobs = [job for job in self.jobs if job not in gone]
        return before - len(self.jobs)

    def finishing(self) -> list[Job]:
        finishing = [job for job in self.jobs if job.num_output_placeholders and job.sampled + 1 >= job.limit
                     ] if self.foresees else []
        self.drop(finishing)
        return finishing

    def dissolve(self) -> list[Job]:
        jobs, self.jobs = self.jobs, []
        return jobs

    def expected(self, ratio: float, most: int) -> float:
        return sum(min(job.limit - job.sampled, most) * (1.0 if job.request.ignore_eos else ratio) for job in self.jobs)

    def settle(self, job: Job) -> None:
        """Do nothing: all are counted one by one."""

    def pages(self) -> int:
        return self.missing_pages(self.jobs)

    def missing_pages(self, jobs: Iterable[Job]) -> int:
        """How many pages *jobs* lack for a decode."""
        blocks = self.cache.blocks
        return sum(max(0, blocks(job.num_computed_tokens + self.slots) - blocks(job.block_table.num_slots))
                   for job in jobs)

    def missing_tokens(self) -> int:
        """How many slots are taken before a decode: whole pages of them."""
        return sum(max(0, self._wanted(job) - job.block_table.num_slots) for job in self.jobs)

    def _wanted(self, job: Job) -> int:
        return self.cache.blocks(job.num_computed_tokens + self.slots) * self.cache.block_tokens

    def launch(self, pages: int) -> None:
        self.grow()
        self.launched += 1

    def grow(self) -> None:
        """Give each job its slots."""
        for job in self.jobs:
            self.cache.grow(job.block_table, max(job.block_table.num_slots, self._wanted(job)))


@define(eq=False)
class SglangDraftScheduler(SglangScheduler):
    """A scheduler that asks `speculation` how many of the drafted tokens are accepted.

    A job has `slots` beyond its committed tokens when it decodes (`draft_slots`).  `num_computed_tokens` of a job that
    decodes counts its committed tokens, as far as results have been taken in.  The cache must have keys that cover one
    token more.
    """

    speculation: Verifications = field(kw_only=True)
    slots: int = field(kw_only=True)
    batch: DraftBatch = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.batch = DraftBatch(self.cache, self.limits.async_scheduling, slots=self.slots)

    @property
    def foreseen(self) -> list[list[int]]:
        return [[min(job.output, job.limit) - job.sampled, job.num_computed_tokens]
                for job in self.batch.jobs if job.state is State.RUNNING]

    def schedule(self, now: float) -> Schedule:
        schedule = super().schedule(now)
        if isinstance(schedule, DraftSchedule):  # it has no prompts
            self._last = None
        return schedule

    # Decodes.

    def _room_for_decode(self) -> None:
        page, missing = self.cache.block_tokens, self.batch.missing_tokens()
        if missing:
            self.cache.make_room(missing if page == 1 else missing + len(self.batch) * page)

    def _fits(self, jobs: Sequence[Job]) -> bool:
        return self.cache.make_room(self.cache.block_tokens * self.batch.missing_pages(jobs))

    def _decode(self) -> Schedule:
        launched = self.batch.launched
        schedule = super()._decode()
        return schedule if self.batch.launched == launched else self._verification()

    def _verification(self) -> DraftSchedule:
        """A decode of all that run, each with its drafts."""
        batch, drafts = self.batch, self.speculation.k
        schedule = DraftSchedule(batch.launched, batch.epoch, (), Offsets(), width=1 + drafts)
        for job in batch.jobs:
            accepted = self.speculation.accepted(job, drafts)
            schedule.entries.append(ScheduledTokens(job, 1 + drafts, _known(job) - 1, True, admitted=False,
                                                    prompt=False, drafts=drafts, accepted=accepted))
            job.num_output_placeholders += 1 + accepted
        return schedule

    def _ride(self, schedule: Schedule) -> None:
        batch = self.batch
        batch.grow()
        for job in batch.dissolve():
            schedule.entries.append(ScheduledTokens(job, 1, job.num_tokens - 1, True, admitted=False, prompt=False))
            job.num_output_placeholders += 1

    # Results.

    def _deliver_entry(self, entry: ScheduledTokens, index: int) -> bool:
        if entry.prompt:
            return super()._deliver_entry(entry, index)
        job, tokens = entry.job, 1 + entry.accepted
        if job.state is not State.RUNNING or not job.num_output_placeholders:  # it has ended, or lost the tokens
            return False
        job.verified += entry.drafts > 0
        job.accepted += entry.accepted
        job.num_output_placeholders -= tokens
        job.num_computed_tokens += tokens
        if not self._append(job, tokens, index):
            return False
        job.num_computed_tokens -= not entry.drafts  # SGLang does not commit the last token of a job that rides
        self._finish(job)
        return True

    def _append(self, job: Job, tokens: int, index: int) -> bool:
        """Give *job* so many *tokens*, of which those after its last one are dropped; return whether it has that one.
        """
        left = min(job.output, max(job.limit, 1)) - job.sampled
        taken = tokens if job.aborted else min(tokens, left)
        job.num_tokens += taken
        job.emit(1, index, taken)
        return job.aborted or taken == left


def _known(job: Job) -> int:
    """The tokens of *job*, with those in flight."""
    return job.num_tokens + job.num_output_placeholders

