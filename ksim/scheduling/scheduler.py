"""Form batches within the limits.

The rules are those of vLLM's V1 scheduler (0.33): there is no prefill phase and no decode phase, only jobs whose
computed tokens catch up with their tokens.  With a prefill interval, prompts join a batch only every so many steps, so
that the steps between them decode fast.  `mixed` puts the rules that only some engines need before those of another
class.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from attrs import Factory, define, field, frozen

from ksim.flow.batch import Offsets
from ksim.kv.cache import PrefixHit
from ksim.scheduling.job import Job, Schedule, ScheduledTokens, State
from ksim.scheduling.policies import ALL
from ksim.scheduling.queues import JobQueues, OpenQueue

T = TypeVar("T")

__all__ = ["Rules", "Scheduler", "mixed", "scheduler_of"]


@define
class PrefillInterval:
    """vLLM's ``prefill_schedule_interval`` of 2 and more; with 1, no step is ever held.

    A `held` step carries no prefill: some job decodes, fewer than `interval`
    steps have been executed since one that carried prefill, and the last step
    that was free to admit left nobody in the queue but jobs that were passed over.
    """

    interval: int
    held: bool = False
    executed: int = 0
    latest: int | None = None  # the executed step that last carried prefill
    backlog: bool = False

    def begin(self, running: Sequence[Job]) -> None:
        """Decide whether the step about to be made is held."""
        soon = self.latest is not None and self.executed + 1 - self.latest < self.interval
        self.held = soon and not self.backlog and any(job.decoding for job in running)

    def end(self, entries: Sequence[ScheduledTokens], waiting: Iterable[Job], asked: bool) -> None:
        """Note the step that was made; *asked* says whether it came to admission."""
        if entries:
            self.executed += 1
            if any(entry.tokens > 1 if entry.admitted else not entry.job.decoding for entry in entries):
                self.latest = self.executed
        if asked and not self.held:
            self.backlog = any(not job.passed_over for job in waiting)


@define(eq=False)
class Scheduler(JobQueues):
    """Makes the schedules of an engine; vLLM's `Scheduler.schedule`."""

    _admissions: int = field(default=0, init=False)
    # Of the schedule being made: the tokens left, and the most that one job may have.
    _budget: int = field(default=0, init=False)
    _cap: int = field(default=ALL, init=False)
    _prefill_interval: PrefillInterval = field(init=False)
    _spare: int = field(init=False)
    _foresees: bool = field(init=False)
    _stops: bool = field(init=False)  # does a running job that gets no blocks end the turn of those behind it?

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        limits = self.limits
        self._prefill_interval = PrefillInterval(limits.prefill_schedule_interval)
        self._stops = limits.self_preemption_ends_turn
        self._spare = int(limits.watermark * (self.cache.capacity + 1))
        # A policy that proposes, a prefill interval and a pipeline all let a decode wait: nothing joins the set then.
        self._foresees = (not self.guard.proposes and limits.prefill_schedule_interval == 1
                          and limits.pipeline_parallel_size == 1)

    def schedule(self, now: float) -> Schedule:
        """Make the next schedule: grant the policy's wishes until tokens, sequence slots or blocks run out.

        A running job for which no block is free preempts a victim.  A waiting one
        ends admission for this step, and so does a preemption.
        """
        self._begin()
        settled = self._advance_decodes()
        if self.guard.proposes:
            self._schedule_wishes(self.running[settled:], now)
        else:
            self._schedule_in_order(self.running[settled:])
        return self._conclude()

    def _schedule_in_order(self, running: Sequence[Job]) -> None:
        """Schedule the rest of the *running* jobs, and admit as many waiting ones as there is room for."""
        for job in running:
            if not self._budget:
                return
            if job.state is State.RUNNING and not self._extend(job, ALL) and self._stops:
                break
        for job in self.waiting:
            if not self._budget or not self._admit(job, ALL):
                return

    def _schedule_wishes(self, running: Sequence[Job], now: float) -> None:
        """Do the same in the order that the policy proposes."""
        waiting, stopped = OpenQueue(self.waiting), False
        for job, wish in self.guard.wishes(waiting, running, now):
            if not self._budget:
                return
            if job.state is State.RUNNING:
                stopped = stopped or (not self._extend(job, wish) and self._stops)
            elif waiting.admitting:
                waiting.admitting = self._admit(job, wish)

    def _begin(self) -> None:
        self.steps += 1
        self.changed = False
        self.guard.step = self.steps
        self.latest = Schedule(self.steps, self.decodes.epoch)
        self._budget = self.limits.max_num_batched_tokens
        if self.limits.prefill_schedule_interval > 1:
            self._prefill_interval.begin(self.running)
        if self.limits.long_prefill_token_threshold:
            self._cap = self.limits.cap(len(self.running) + len(self.waiting)) or ALL

    def _advance_decodes(self) -> int:
        """Give each job of the decode set its token, if there are blocks for all; return how many it has."""
        decodes, schedule = self.decodes, self.latest
        if not decodes.advance(self.steps):
            decodes.dissolve(self.running, self.steps - 1)
            return 0
        self._budget -= len(decodes.members)
        assert self._budget >= 0, "a job was admitted although those before it had taken all tokens"
        schedule.decodes, schedule.offsets = decodes.members, decodes.offsets
        return decodes.length

    def _conclude(self) -> Schedule:
        """Update the waiting queue, and count the scheduled tokens as computed."""
        schedule, ahead = self.latest, self.limits.async_scheduling
        for job in schedule.admitted:
            self.waiting.remove(job)
        if self.limits.prefill_schedule_interval > 1:
            self._prefill_interval.end(schedule.entries, self.waiting, asked=not schedule.preempted)
        for job in schedule.preempted:
            self.waiting.put_back(job)
        for entry in schedule.entries:
            job = entry.job
            job.num_computed_tokens += entry.tokens
            job.decoding, job.sent = entry.samples, self.steps
            job.num_output_placeholders += entry.samples and ahead
        if self._foresees and self.decodes.length < len(self.running):
            self.decodes.extend(self.running, self.steps)
        return schedule

    def _extend(self, job: Job, wish: int) -> bool:
        """Schedule tokens of a running job, preempting until they fit; return False if it was preempted itself."""
        due, computed = job.num_output_placeholders, job.num_computed_tokens
        if self._prefill_interval.held and not job.decoding:
            return True
        if due and (computed + 2 - due >= job.request.prompt + job.limit  # its last token is scheduled already
                    or self.steps < job.step + self.limits.pipeline_parallel_size):  # that token is not even sampled
            return True
        tokens = min(job.backlog, wish, self._cap, self._budget, self.limits.max_model_len - 1 - computed)
        if tokens <= 0:
            return True
        while not self.cache.allocate(job.block_table, computed + tokens):
            if self._preempt() in (job, None):
                return False
        self._schedule_tokens(job, tokens, admitted=False)
        return True

    def _preempt(self) -> Job | None:
        """Preempt a running job: free its blocks, and drop its entry of this step, if it has one; return the job."""
        if self.guard.chooses and self.decodes.length:
            self._dissolve_decodes()
        victim = self.guard.victim(self.running)
        if victim.step == self.steps:
            entries = self.latest.entries
            index = next(i for i, entry in enumerate(entries) if entry.job is victim)
            self._budget += entries.pop(index).tokens
        self.running.remove(victim)
        self.cache.free(victim.block_table)
        victim.state, victim.num_computed_tokens, victim.step = State.WAITING, 0, self.steps
        victim.preemptions += 1
        self.latest.preempted.append(victim)
        return victim

    def _dissolve_decodes(self) -> None:
        """Dissolve the decode set, and write its jobs' tokens of this step as entries."""
        decodes, schedule = self.decodes, self.latest
        given, rest = schedule.decodes, schedule.entries
        decodes.dissolve(self.running, self.steps - 1)
        schedule.decodes, schedule.offsets, schedule.entries = (), Offsets(), []
        self._budget += len(given)
        for job in given:
            decodes.hold(job, job.num_computed_tokens + 1)
            self._schedule_tokens(job, 1, admitted=False)
        schedule.entries += rest

    def _admit(self, job: Job, wish: int) -> bool:
        """Admit a waiting job if there is room, or pass it over; return whether admission goes on with the next."""
        if self.latest.preempted or len(self.running) >= self.limits.active:
            return False
        if self.decodes.awaits(job):  # preempted with tokens in flight, if only those of a partial chunk
            job.passed_over = True
            return True
        if self.guard.demands and self.decodes.length:  # the admission must see true counts
            self._dissolve_decodes()
        hit = self._find_prefix(job)
        return self._start(job, hit, hit.tokens, wish)

    def _find_prefix(self, job: Job) -> PrefixHit:
        return self.cache.find_prefix(job.block_table, job.num_tokens) if job.reads_cache else PrefixHit(0)

    def _start(self, job: Job, hit: PrefixHit, computed: int, wish: int) -> bool:
        """Admit *job*, which has so many tokens *computed* and begins with *hit*; return whether there was room."""
        tokens = self._first_chunk(job, computed, wish)
        if tokens < 0 or not self._has_room(job, hit, computed + tokens) or (
                self.guard.demands and not self.guard.admits(job, self.running, self.cache)):
            return False
        self._attach(job, hit, computed + tokens)
        job.state, job.num_computed_tokens, job.cached = State.RUNNING, computed, computed
        job.rank, job.passed_over = self._admissions, False
        self._admissions += 1
        self.latest.admitted.append(job)
        self.running.append(job)
        self._schedule_tokens(job, tokens, admitted=True)
        return True

    def _first_chunk(self, job: Job, computed: int, wish: int) -> int:
        """How many tokens *job* gets with its admission; -1 if it must wait."""
        wanted = min(job.num_tokens - computed, wish, self._cap)
        if not self.limits.enable_chunked_prefill and wanted > self._budget:
            return -1
        tokens = min(wanted, self._budget)
        return -1 if self._prefill_interval.held and tokens > 1 else tokens

    def _attach(self, job: Job, hit: PrefixHit, tokens: int) -> None:
        """Give *job*, which begins with *hit*, blocks for its first *tokens* tokens, which are free."""
        self.cache.attach_prefix(job.block_table, hit)
        grown = self.cache.allocate(job.block_table, tokens)
        assert grown, "blocks that were free are gone"

    def _has_room(self, job: Job, hit: PrefixHit, tokens: int) -> bool:
        spare = self._spare if self.running else 0
        if self.limits.scheduler_reserve_full_isl and not self.cache.can_admit(hit, job.num_tokens, spare):
            return False
        return self.cache.can_allocate(hit, tokens, spare)

    def _schedule_tokens(self, job: Job, tokens: int, admitted: bool) -> None:
        end = job.num_computed_tokens + tokens
        self.cache.publish(job.block_table, min(end, job.num_tokens))
        self._budget -= tokens
        job.step = self.steps
        samples = end == job.num_tokens + job.num_output_placeholders
        self.latest.entries.append(ScheduledTokens(job, tokens, job.num_computed_tokens, samples, admitted,
                                                   prompt=admitted or not job.decoding))

    def _pass_over(self, job: Job) -> bool:
        """Have *job* wait for something other than room; return whether admission goes on with the next."""
        return True

    def _promote(self, job: Job) -> bool:
        """Let *job*, whose KV is being loaded, go on if its load has ended; return whether it has."""
        return True


@frozen
class Rules:
    """Rules that a feature adds to a scheduler: those of a `kind`, which has these `fields`.

    Of several, those with the highest `rank` are asked first.
    """

    rank: int
    kind: Any
    fields: Mapping[str, Any] = Factory(dict)


def scheduler_of(parts: Sequence[Any], rules: Iterable[Rules] = ()) -> Scheduler:
    """A scheduler of these *parts*, which are limits, policy, cache and, unless all may start, admission."""
    kind: Any = Scheduler
    fields = dict[str, Any]()
    for one in sorted(rules, key=_rank):
        kind, fields = mixed(one.kind, kind), {**fields, **one.fields}
    scheduler: Scheduler = kind(*parts, **fields)
    return scheduler


def _rank(rules: Rules) -> int:
    return rules.rank


@lru_cache
def mixed(rules: type[T], kind: type[T]) -> type[T]:
    """The class of schedulers, or engines, like *kind* that ask *rules* first; either alone if it extends the other."""
    if issubclass(rules, kind) or issubclass(kind, rules):
        return rules if issubclass(rules, kind) else kind
    joined = type(f"{rules.__name__}{kind.__name__}", (rules, kind), {"__doc__": rules.__doc__})
    made: type[T] = define(eq=False, slots=False)(joined)
    return made
