"""SGLang's scheduler, turn by turn: a batch of prompts where there is room for one, or else a decode of all that run.

The rules are those of SGLang 0.5.23 (srt/managers/scheduler.py, schedule_batch.py and what they call).  A turn is one
pass of its event loop.  With overlap, a turn is planned before the result of the one before it is known.
"""

from collections.abc import Sequence
from typing import ClassVar

from attrs import define

from ksim.scheduling.job import Job, Schedule, ScheduledTokens, State
from ksim.scheduling.sglang.jobs import SglangJobs
from ksim.scheduling.sglang.prefill_pass import CLIP, RETRACT_TOKENS, PrefillPass

__all__ = ["SglangScheduler"]


@define(eq=False)
class SglangScheduler(SglangJobs):
    """Makes the schedules of an engine; SGLang's `get_next_batch_to_run`."""

    _pass: ClassVar[type[PrefillPass]] = PrefillPass

    def _drop_chunked(self) -> None:
        """Drop the job whose prompt is cut, if it was aborted."""
        job, self._pending_abort = self._pending_abort, None
        if job is not None and job is self.chunked:
            self.chunked, self._cut = None, None
            self._release(job)
            self.rejected.append(job)

    # A turn.

    def schedule(self, now: float) -> Schedule:
        """Plan the next batch: prompts if anybody can be admitted, or else a decode."""
        self.steps += 1
        self.guard.step = self.steps
        self.preempted, self.retracted = [], []
        if self.idled:
            self.ratio.reset()
        self._look_for_jobs()
        self._drop_chunked()
        self._publish_chunk()
        self._merge()
        schedule = None if self._holds_back() else self._prefill()
        if schedule is None:
            schedule = self._decode() if len(self.batch) else self._nothing()
        elif self.limits.prefill_decode_interval:
            self._held_turns = self.limits.prefill_decode_interval
        rested = self.limits.disable_overlap_schedule or not self.latest
        self.idled = rested and not (schedule or self.has_requests)
        schedule.preempted = [*self.preempted, *self.retracted]
        self._last, self.latest = schedule if schedule.entries else None, schedule
        if rested and self._goes_on and not (schedule or schedule.preempted):
            return SglangScheduler.schedule(self, now)  # turns without a batch take no time
        return schedule

    @property
    def _goes_on(self) -> bool:
        """Whether a later turn may do what one without a batch could not: look for those that have come."""
        return bool(self._coming)

    def _nothing(self) -> Schedule:
        return Schedule(self.batch.launched, self.batch.epoch)

    def _publish_chunk(self) -> None:
        """Let the last chunk of the job whose prompt is cut enter the tree."""
        if self._cut is not None:
            job, end = self._cut
            self.cache.publish_computed(job.block_table, end, job.request.prompt)
            self._cut = None

    def _merge(self) -> None:
        """Let those whose prompts were computed in the turn before decode, and those that ended leave."""
        batch, last = self.batch, self._last
        if last is not None:
            jobs = [entry.job for entry in last.entries]
            joining = [job for job in jobs if job.state is State.RUNNING and job is not self.chunked
                       and not job.in_decode_set]
            if len(joining) < len(jobs):
                batch.full = False
            if joining and not len(batch):
                batch.full, batch.prompts_only = False, True
                batch.grown_from = sum(entry.tokens for entry in last.entries)
            if joining:
                batch.prompts_only &= all(entry.prompt and entry.job.limit == 0 for entry in last.entries)
                batch.join(joining)
        if batch.drop(self._ended):
            batch.full = False
        self._ended.clear()

    def _holds_back(self) -> bool:
        """Whether decodes have turns to themselves after a prefill."""
        if not self._held_turns:
            return False
        if len(self.batch) < (self.limits.prefill_decode_interval_min_bs or 0):
            self._held_turns = 0
            return False
        self._held_turns -= 1
        return True

    # Prompts.

    def _places(self, held: int = 0) -> int:
        """How many more jobs may run; those that are about to hold *held* rows already."""
        most = self.limits.max_running_requests
        return min(most - len(self.batch), max(most - self._rows + held, 0))

    def _prefill(self) -> Schedule | None:
        batch, limits = self.batch, self.limits
        if limits.preempts or not len(batch):
            batch.full = False
        if (batch.full or not self._queue.jobs) and self.chunked is None:
            return None
        if self.chunked is None:
            places = self._places()
            if len(batch) and places < limits.min_free_slots:
                return None
            if places <= 0 and not limits.preempts:
                batch.full = True
                return None
        self._queue.arrange(self._prefilled)
        admitted = self._admit_all()
        self._queue.leave(job for job, _, _ in admitted.jobs)
        for job in self.preempted:
            self._requeue(job)
        return self._launch(admitted) if admitted.jobs else None

    def _admit_all(self) -> PrefillPass:
        """Look at the job whose prompt is cut, then at the queue, until budgets or memory run out."""
        batch, limits, page = self.batch, self.limits, self.cache.block_tokens
        beside = len(batch) if limits.mixes else 0
        ratio = self.ratio.now
        reserved = beside + batch.expected(ratio, CLIP)
        admitted = self._pass(
            batch, ratio, limits.max_prefill_tokens - beside,
            None if limits.chunked_prefill_size < 0 else limits.chunked_prefill_size - beside, reserved, beside)
        if self.chunked is not None:
            most = self._queue.chunk_limit(self.chunked, admitted.chunk or 0, page)
            if not admitted.go_on(self.chunked, most):
                self.chunked = None
        for job in self._queue.jobs:
            if admitted.spent or not self._has_place(job, admitted):
                break
            if limits.prefill_max_requests is not None and len(admitted.jobs) >= limits.prefill_max_requests:
                admitted.look_up(job)
                break
            shortest = limits.schedule_policy == "shortest-prefill-first"
            if not (answer := admitted.add(job, shortest and self.chunked is not None)):
                if answer is None:
                    batch.full = bool(admitted.jobs) or bool(len(batch))
                break
        return admitted

    def _reserved(self, job: Job, ratio: float) -> float:
        """What admission sets aside for the rest of the output of *job*, which runs."""
        return min(job.limit - self.batch.sampled(job), CLIP) * (1.0 if job.request.ignore_eos else ratio)

    def _has_place(self, job: Job, admitted: PrefillPass) -> bool:
        """Whether there is a place for *job*, if need be that of a running one that is less urgent."""
        held = sum(other.state is State.RUNNING for other, _, _ in admitted.jobs)
        if len(admitted.jobs) >= self._places(held):
            self.batch.full = True
        if not self.batch.full:
            return True
        return self.limits.preempts and self._preempt_for(job, admitted)

    def _preempt_for(self, job: Job, admitted: PrefillPass) -> bool:
        """Preempt jobs less urgent than *job* by more than the threshold, as few as its memory needs; return whether
        any were."""
        sign, batch = self.limits.sign, self.batch
        short = (job.seen - job.cached + min(job.limit, CLIP)) - admitted.memory
        victims = list[Job]()
        for other in sorted((other for other in batch.jobs if other.state is State.RUNNING),
                            key=lambda other: (-sign * other.request.priority, -other.entered)):
            if -sign * (job.request.priority - other.request.priority) <= (
                    self.limits.priority_scheduling_preemption_threshold):
                break
            victims.append(other)
            short -= self._reserved(other, admitted.ratio)
            if short <= 0:
                break
        if not victims or short > 0:
            return False
        left = len(batch)
        for other in [other for other in batch.jobs if other in victims]:
            admitted.reserved -= self._reserved(other, admitted.ratio)
            left -= 1
            batch.drop([other])
            batch.settle(other)
            self._retract(other, left)
        self.preempted += victims
        return True

    def _launch(self, admitted: PrefillPass) -> Schedule:
        """Launch the batch of prompts, with those that decode beside them where chunks are mixed."""
        schedule, batch = Schedule(self.batch.launched, self.batch.epoch), self.batch
        if admitted.cut is not None:
            self.chunked = admitted.cut
        page = self.cache.block_tokens
        total = sum(tokens for _, _, tokens in admitted.jobs)
        self.cache.make_room(total if page == 1 else total + len(admitted.jobs) * page)
        for job, before, tokens in admitted.jobs:
            self._start(job, before, tokens, schedule)
        self._prefilled += total
        if self.limits.mixes and len(batch):
            self._mix(schedule)
        return schedule

    def _start(self, job: Job, before: int, tokens: int, schedule: Schedule) -> None:
        """Take memory for *tokens* tokens of *job* after those *before*."""
        new = job.state is State.WAITING
        if new:
            job.state, self._rows = State.RUNNING, self._rows + 1
            job.num_computed_tokens = before
            schedule.admitted.append(job)
        self.cache.grow(job.block_table, before + tokens)
        samples = job is not self.chunked
        schedule.entries.append(ScheduledTokens(job, tokens, before, samples, new, prompt=True))
        job.num_computed_tokens = before + tokens
        job.num_output_placeholders += samples
        if not samples:
            self._cut = job, before + tokens

    def _mix(self, schedule: Schedule) -> None:
        """Let those that decode ride behind the prompts, if there is memory for them."""
        batch = self.batch
        if batch.finishing():
            batch.full = False
        if not len(batch) or not self.cache.make_room(batch.pages() * self.cache.block_tokens):
            return
        self._room_for_decode()
        self._prefilled += len(batch)
        self._ride(schedule)

    def _ride(self, schedule: Schedule) -> None:
        """Put all that decode behind the prompts of *schedule*."""
        for job in self.batch.dissolve():
            self.cache.grow(job.block_table, job.num_computed_tokens + 1)
            schedule.entries.append(ScheduledTokens(job, 1, job.num_computed_tokens, True, admitted=False,
                                                    prompt=False))
            job.num_computed_tokens += 1
            job.num_output_placeholders += 1
            job.seen = job.num_tokens

    # Decodes.

    def _room_for_decode(self) -> None:
        """Evict until there is a page for each job that decodes, needed or not."""
        self.cache.make_room(len(self.batch) * self.cache.block_tokens)

    def _decode(self) -> Schedule:
        batch, before = self.batch, len(self.batch)
        if batch.prompts_only:
            return self._nothing()
        finishing = batch.finishing()
        if not len(batch):
            batch.full = False
            return self._nothing()
        if self.cache.make_room(batch.pages() * self.cache.block_tokens):
            self.ratio.decay()
        elif finishing:  # they leave enough at the end of this turn
            batch.full = False
            return self._nothing()
        else:
            self._retract_some()
        if len(batch) < before:
            batch.full = False
        if not len(batch):
            return self._nothing()
        self._room_for_decode()
        batch.begin_repeats()
        batch.launch(batch.pages())
        self._prefilled += batch.grown_from
        return Schedule(batch.launched, batch.epoch, batch.members, batch.offsets)

    def _retract_some(self) -> None:
        """Retract jobs until those that stay have memory for a decode."""
        batch = self.batch
        kept = batch.dissolve()
        kept.sort(key=self._staying, reverse=True)
        retracted = self.retracted
        while len(kept) > 1 and (not retracted or not self._fits(kept)):
            job = self.guard.victim(kept)
            kept.remove(job)
            self._retract(job, len(kept))
            retracted.append(job)
        if len(kept) <= 1 and not self._fits(kept):
            job = kept.pop()
            self._release(job)
            job.why = "the KV cache has no room for its next token, though nobody decodes beside it"
            self.rejected.append(job)
        self.ratio.retracted(sum(job.sampled for job in kept), len(kept), sum(job.limit for job in kept))
        if kept:
            batch.join(kept)
        for job in retracted:
            self._requeue(job)

    def _staying(self, job: Job) -> tuple[int, ...]:
        """Jobs with a larger key stay rather."""
        length = job.sampled, -job.request.prompt
        return (-self.limits.sign * job.request.priority, *length) if (
            self.limits.retraction_policy == "priority") else length

    def _fits(self, jobs: Sequence[Job]) -> bool:
        page = self.cache.block_tokens
        return self.cache.make_room(page * sum(job.num_computed_tokens % page == 0 for job in jobs))

    def _retract(self, job: Job, left: int) -> None:
        """Take its memory from *job*, which loses its tokens in flight, and make some for the *left* others."""
        self._give_back(job)
        self.cache.make_room(left * RETRACT_TOKENS)
        job.state, job.num_computed_tokens, job.num_output_placeholders, job.cached = State.WAITING, 0, 0, 0
        job.preemptions += 1

    # Schedules that are known to be just like the latest need not be made.

    def affords(self, repeats: int) -> int:
        """For how many of so many *repeats* there are pages for certain."""
        page, most = self.cache.block_tokens, self._free_pages // len(self.batch) - 2
        return max(0, min(repeats, most * page))

    @property
    def _free_pages(self) -> int:
        """How many pages are free wherever its tokens take some."""
        return self.cache.pool.free

    def repeat(self) -> bool:
        """Make a decode like the latest one; return False, with nothing done, where pages are short."""
        batch = self.batch
        if self._free_pages < len(batch):
            return False
        self._room_for_decode()
        self.steps += 1
        self.ratio.decay()
        self._unseen = (self._unseen + 1) % self.limits.scheduler_recv_interval
        batch.launch(batch.pages())
        self._prefilled += batch.grown_from
        return True

    def sync(self, index: int) -> Schedule:
        """Catch up after repeats: the engine's steps up to number *index* are back; return the latest schedule."""
        self.batch.catch_up(self.batch.launched - self.limits.async_scheduling, index)
        return self.repeated()

    def repeated(self) -> Schedule:
        """The schedule that the last repeat made."""
        batch = self.batch
        self.latest = Schedule(batch.launched, batch.epoch, batch.members, batch.offsets)
        return self.latest

    # What is known of the next schedules.

    def independent_of_arrivals(self, newcomers: bool) -> bool:
        """Whether the next schedule is the same whenever it is made, and whatever jobs come before it, if any may come
        (*newcomers*)."""
        retracts = self.cache.pool.free < len(self.batch)  # whoever is retracted waits behind those that came before
        seen_at_once = self.limits.scheduler_recv_interval == 1  # else the turn may be one that looks who has come
        return not newcomers or (self._ignores_queue and not retracts and seen_at_once
                                 and self.limits.max_queued_requests is None)

    def repeats_left(self) -> int:
        """How many more schedules will be just like the latest, if no job comes and none is aborted."""
        batch, decodes = self.batch, self.latest.decodes
        forgets = batch.full and self.limits.preempts  # the next turn unmarks the batch
        ignored = self._ignores_queue if self._queue.jobs else self._is_alone and not forgets
        if self._coming or not ignored or not decodes or len(decodes) != len(batch):
            return 0
        return batch.first_end() - batch.launched - self.limits.disable_overlap_schedule

    @property
    def _ignores_queue(self) -> bool:
        """Whether the next turn is a decode, whoever waits."""
        return self.batch.full and not self.limits.preempts and self._is_alone

    @property
    def _is_alone(self) -> bool:
        """Whether the batch that decodes is all that the next turn is about, unless somebody waits."""
        return not (self._last or self.chunked or self._held_turns or self._ended)
