"""The scheduler of an engine that decodes speculatively: jobs verify drafted tokens beside their own.

`Speculation` is what it asks of vLLM's `SpeculativeConfig`, the drafter and the model.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from attrs import define, field

from ksim.flow.batch import Batch, Contexts, Offsets
from ksim.flow.request import Request
from ksim.kv.cache import BlockTable, PrefixHit
from ksim.scheduling.job import Job, Schedule, ScheduledTokens, State
from ksim.scheduling.scheduler import Rules, Scheduler

__all__ = ["DraftSchedule", "DraftScheduler", "Speculation", "drafting"]


@define(eq=False)
class DraftSchedule(Schedule):
    """Schedule of an engine whose decodes have up to `width` tokens: one known, the others drafted."""

    width: int = 1

    def batch(self) -> Batch:
        """What kernels see of it, and whose prompts are in it.

        Decode kernels take sequences of one width, that of most: others go with the prompts, as in vLLM.
        """
        if self.width == 1:
            return super().batch()
        entries = self.entries
        counts = Counter(entry.tokens for entry in entries)
        width = self.width if counts[self.width] >= max(counts[1], 1) else 1
        wide = [entry.start - self.number for entry in entries if entry.tokens == width]
        return Batch(
            contexts=Contexts(Offsets(wide), self.number),
            chunks=tuple((entry.tokens, entry.start) for entry in entries if entry.tokens != width),
            samples=sum(entry.samples for entry in entries), tokens=sum(entry.tokens for entry in entries),
            prompts=tuple((entry.job.request.id, entry.tokens - entry.drafts, entry.start)
                          for entry in entries if entry.prompt),
            images=self.images, width=width, drafts=sum(entry.drafts for entry in entries),
            accepted=tuple(entry.accepted for entry in entries if entry.drafts),
            prompt_logprobs=self.prompt_logprobs())


class Speculation(Protocol):
    """A drafter proposes `k` tokens a step (vLLM's `num_speculative_tokens`), and the model accepts some of them."""

    @property
    def k(self) -> int: ...

    @property
    def lookahead(self) -> int:
        """Slots that each job gets beyond its tokens: k for a drafter with KV of its own, otherwise 0."""
        ...

    @property
    def drops_block(self) -> bool:
        """Whether a prefix hit loses its last block, as with EAGLE whose block keys are plain."""
        ...

    @property
    def keys_ahead(self) -> bool:
        """Whether a block's key covers the first token after it too, as with EAGLE by default: then the names of blocks
        do, and a block is published one token later."""
        ...

    @property
    def input_slots(self) -> int:
        """Tokens of the budget that each scheduled job costs beyond its own: 1 for a draft model, otherwise 0."""
        ...

    def accepted(self, job: Job, drafts: int) -> int:
        """How many of *drafts* drafted tokens of *job*, in the batch just made, the model accepts."""
        ...

    def proposed(self, job: Job) -> int:
        """How many tokens are drafted for *job* after a batch that sampled for it."""
        ...


@define(eq=False)
class DraftScheduler(Scheduler):
    """Without `speculation` it is a plain scheduler.  With it, no decode can be foreseen, and none joins the decode
    set."""

    speculation: Speculation | None = field(default=None, kw_only=True)
    _lookahead: int = field(default=0, init=False)
    _key_tokens: int = field(default=0, init=False)
    _input_slots: int = field(default=0, init=False)
    _amid_prefill: bool = field(default=False, init=False)  # is a running job of this step in the middle of its prompt?

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.speculation is not None:
            self._foresees, self._lookahead = False, self.speculation.lookahead
            self._key_tokens, self._input_slots = self.speculation.keys_ahead, self.speculation.input_slots

    @property
    def spare_slots(self) -> int:  # type: ignore[override]
        return self.speculation.k + self._lookahead if self.speculation is not None else 0

    def block_table(self, request: Request) -> BlockTable:
        named = getattr(self.cache, "unit", self.cache.block_tokens)  # what a key stands for
        return super().block_table(request.keyed_ahead(named) if self._key_tokens else request)

    def _begin(self) -> None:
        super()._begin()
        self._amid_prefill = False
        self._budget -= self._input_slots
        if self.speculation is not None:
            self.latest = DraftSchedule(self.steps, self.decodes.epoch, width=1 + self.speculation.k)

    # Running jobs.

    def _extend(self, job: Job, wish: int) -> bool:
        if self.speculation is None:
            return super()._extend(job, wish)
        computed, due = job.num_computed_tokens, job.num_output_placeholders
        tokens = self._next_chunk(job, wish)
        if tokens <= 0:
            return True
        while not self.cache.allocate(job.block_table, self._slots(computed + tokens)):
            if self._preempt() in (job, None):
                return False
        drafts = max(0, min(job.drafts, computed + tokens - job.num_tokens - due))
        job.drafts = 0
        self._amid_prefill |= not job.decoding
        self._schedule_drafts(job, tokens, drafts, admitted=False)
        return True

    def _next_chunk(self, job: Job, wish: int) -> int:
        """How many tokens the running *job* could get, with its drafts, of which a policy's *wish* knows nothing; none
        where it must wait."""
        due, computed, limits = job.num_output_placeholders, job.num_computed_tokens, self.limits
        if self._prefill_interval.held and not job.decoding:
            return 0
        if due and (computed + 2 - due >= job.request.prompt + job.limit
                    or self.steps < job.step + limits.pipeline_parallel_size):
            return 0
        return min(min(job.backlog, wish) + job.drafts, self._cap, self._budget, limits.max_model_len - 1 - computed)

    def _slots(self, tokens: int) -> int:
        """For how many tokens a job with so many *tokens* needs slots."""
        return min(tokens + self._lookahead, self.limits.max_model_len)

    def _schedule_drafts(self, job: Job, tokens: int, drafts: int, admitted: bool) -> None:
        """Schedule *tokens* tokens, of which the last *drafts* are drafted."""
        end = job.num_computed_tokens + tokens
        self.cache.publish(job.block_table, min(end, job.num_tokens - self._key_tokens))
        self._budget -= tokens + self._input_slots
        job.step = self.steps
        samples = end - drafts == job.num_tokens + job.num_output_placeholders
        self.latest.entries.append(ScheduledTokens(job, tokens, job.num_computed_tokens, samples, admitted,
                                                   prompt=admitted or not job.decoding, drafts=drafts))

    def _preempt(self) -> Job | None:
        entries = len(self.latest.entries)
        victim = super()._preempt()
        if victim is not None:
            victim.drafts = 0
            self._budget += self._input_slots * (entries - len(self.latest.entries))
        return victim

    # Admission.

    def _find_prefix(self, job: Job) -> PrefixHit:
        hit = super()._find_prefix(job)
        if self.speculation is None or not self.speculation.drops_block or not hit.tokens:
            return hit
        return self.cache.find_prefix(job.block_table, hit.tokens - self.cache.block_tokens + 1)

    def _first_chunk(self, job: Job, computed: int, wish: int) -> int:
        tokens = super()._first_chunk(job, computed, wish)
        if self.speculation is None or not self._is_padded(job, computed):
            return tokens
        padded = 1 + self.speculation.k
        return padded if padded <= self._budget else -1

    def _is_padded(self, job: Job, computed: int) -> bool:
        """Whether *job*, with so many tokens *computed*, is admitted with drafts that nobody made, to be rejected.

        A batch of verifications has one shape; vLLM pads a job with one token left that would join it.
        """
        if self.speculation is None or job.num_tokens - computed != 1 or self._amid_prefill:
            return False
        joins = computed > 0 or any(not entry.admitted for entry in self.latest.entries)
        return joins and computed + 2 + self.speculation.k <= self.limits.max_model_len

    def _has_room(self, job: Job, hit: PrefixHit, tokens: int) -> bool:
        spare = self._spare if self.running else 0
        if self.limits.scheduler_reserve_full_isl and not self._fits(job, hit, job.num_tokens, spare, whole=True):
            return False
        return self._fits(job, hit, self._slots(tokens), spare)

    def _fits(self, job: Job, hit: PrefixHit, tokens: int, spare: int, whole: bool = False) -> bool:
        return (self.cache.can_admit if whole else self.cache.can_allocate)(hit, tokens, spare)

    def _attach(self, job: Job, hit: PrefixHit, tokens: int) -> None:
        super()._attach(job, hit, self._slots(tokens) if self._lookahead else tokens)

    def _schedule_tokens(self, job: Job, tokens: int, admitted: bool) -> None:
        if self.speculation is None:
            super()._schedule_tokens(job, tokens, admitted)
        else:
            padding = max(0, tokens - (job.num_tokens - job.num_computed_tokens))
            self._schedule_drafts(job, tokens, padding, admitted)

    # What batches bring.

    def _conclude(self) -> Schedule:
        schedule, speculation = super()._conclude(), self.speculation
        if speculation is None:
            return schedule
        for entry in schedule.entries:
            if entry.drafts and not entry.admitted:
                entry.accepted = speculation.accepted(entry.job, entry.drafts)
            if entry.samples and self.limits.async_scheduling:
                entry.job.num_output_placeholders += entry.drafts
                entry.job.drafts = speculation.k
        return schedule

    def _deliver_entries(self, schedule: Schedule, index: int) -> list[Job]:
        if self.speculation is None:
            return super()._deliver_entries(schedule, index)
        done = [entry.job for entry in schedule.entries if entry.samples and self._deliver_drafts(entry, index)]
        if not self.limits.async_scheduling:
            for entry in schedule.entries:
                job = entry.job
                job.drafts = self.speculation.proposed(job) if entry.samples and job.state is State.RUNNING else 0
        return done

    def _deliver_drafts(self, entry: ScheduledTokens, index: int) -> bool:
        """Give the job of *entry* the token sampled for it after those that were accepted; return whether it is done.
        """
        job = entry.job
        if not self._takes(job):
            return False
        ahead, running = self.limits.async_scheduling, job.state is State.RUNNING
        rejected = entry.drafts - entry.accepted
        job.verified += entry.drafts > 0
        job.accepted += entry.accepted
        job.num_output_placeholders -= rejected * ahead
        if running:  # a preemption has set the count back
            job.num_computed_tokens -= rejected
        done = self._append(job, 1 + entry.accepted, index)
        if running:
            self.cache.publish(job.block_table, job.num_computed_tokens - job.num_output_placeholders)
        return done

    def _append(self, job: Job, tokens: int, index: int) -> bool:
        """Give *job* so many *tokens*; those after its last one are dropped."""
        job.num_output_placeholders -= tokens * self.limits.async_scheduling
        left = max(1, min(job.output - job.sampled, self.limits.max_model_len - job.num_tokens))
        taken = min(tokens, left)
        job.num_tokens += taken
        job.num_computed_tokens -= tokens - taken
        job.emit(1, index, taken)
        return taken == left

    def _takes(self, job: Job) -> bool:
        """Whether *job* gets the tokens of the batch that is taken in."""
        return job.state is not State.DONE


def drafting(speculation: Speculation) -> Sequence[Rules]:
    """The rules of an engine that decodes with *speculation*."""
    return (Rules(0, DraftScheduler, {"speculation": speculation}),)
