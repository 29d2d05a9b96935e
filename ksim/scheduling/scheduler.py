"""Form batches within the limits, and take in what they computed.

The rules are those of vLLM's V1 scheduler (0.33): there is no prefill phase and
no decode phase, only jobs whose computed tokens catch up with what they know.
"""

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from ksim.flow.batch import Offsets
from ksim.kv_cache.cache import Cache, PrefixHit
from ksim.scheduling.admissions.always import Always
from ksim.scheduling.assignment import Assignment, Grant
from ksim.scheduling.cadence import Cadence
from ksim.scheduling.counsel import Counsel
from ksim.scheduling.job import Job, State
from ksim.scheduling.limits import Limits
from ksim.scheduling.policies import ALL
from ksim.scheduling.queue import OpenQueue, WaitingQueue
from ksim.scheduling.steady import Steady


@define(eq=False)
class Scheduler:
    """`running` jobs hold cache blocks, in order of admission; waiting ones hold none.

    `latest` is the schedule made last, and `stirred` says whether anybody has come, gone or computed a prompt since.
    """

    limits: Limits
    policy: Any
    cache: Cache
    admission: Any = field(factory=Always)
    waiting: WaitingQueue = field(init=False)
    running: list[Job] = field(factory=list, init=False)
    steps: int = field(default=0, init=False)
    _admissions: int = field(default=0, init=False)
    latest: Assignment = field(factory=Assignment, init=False)
    # Of the step being made: the tokens left, and the most that one job may have.
    _budget: int = field(default=0, init=False)
    _cap: int = field(default=ALL, init=False)
    counsel: Counsel = field(init=False)
    _cadence: Cadence = field(init=False)
    steady: Steady = field(init=False)
    _spare: int = field(init=False)
    _foresees: bool = field(init=False)
    stirred: bool = field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        limits = self.limits
        if hasattr(self.policy, "attach"):
            self.policy.attach(self.cache)
        self.counsel = Counsel(self.policy, self.admission)
        self.waiting = self.counsel.queue()
        self._cadence = Cadence(limits.prefill_schedule_interval)
        self.steady = Steady(self.cache, limits.async_scheduling, limits.max_model_len)
        self._spare = int(limits.watermark * (self.cache.capacity + 1))
        # A policy that orders each step, a cadence and a pipeline all let a decode wait: nothing is steady then.
        self._foresees = (not self.counsel.proposes and limits.prefill_schedule_interval == 1
                          and limits.pipeline_parallel_size == 1)

    def add(self, job: Job) -> None:
        """Let *job* wait for its turn."""
        self.stirred = True
        self.waiting.add(job)

    def abort(self, job: Job) -> None:
        """Drop *job* wherever it is; what it has in flight is lost."""
        self.stirred = True
        if job.state is State.WAITING:
            self.waiting.remove(job)
        elif job.state is State.RUNNING:
            if job.steady:
                self.steady.leave([job], self.steps)
            self.running.remove(job)
            self.cache.free(job.block_table)
        job.state = State.DONE

    # One schedule.

    def schedule(self, now: float) -> Assignment:
        """Grant the policy's wishes until tokens, jobs or blocks run out.

        A running job that gets no block makes a victim give way.  A waiting one
        that gets none ends admission for this step, and so does a preemption.
        """
        self._begin()
        settled = self._advance_steady()
        if self.counsel.proposes:
            self._grant_wishes(self.running[settled:], now)
        else:
            self._grant_in_order(self.running[settled:])
        return self._conclude()

    def _grant_in_order(self, running: Sequence[Job]) -> None:
        """Let the rest of the *running* jobs go on, and admit as many waiting ones as there is room for."""
        for job in running:
            if not self._budget:
                return
            if job.state is State.RUNNING and not self._extend(job, ALL) and self.limits.self_preemption_ends_turn:
                return
        for job in self.waiting:
            if not self._budget or not self._admit(job, ALL):
                return

    def _grant_wishes(self, running: Sequence[Job], now: float) -> None:
        """The same in the order that the policy proposes."""
        waiting = OpenQueue(self.waiting)
        for job, wish in self.counsel.wishes(waiting, running, now):
            if not self._budget:
                return
            if job.state is State.RUNNING:
                if not self._extend(job, wish) and self.limits.self_preemption_ends_turn:
                    return
            elif waiting.admitting:
                waiting.admitting = self._admit(job, wish)

    def _begin(self) -> None:
        self.steps += 1
        self.stirred = False
        self.counsel.step = self.steps
        self.latest = Assignment(self.steps, self.steady.epoch)
        self._budget = self.limits.max_num_batched_tokens
        self._cadence.begin(self.running)
        if self.limits.long_prefill_token_threshold:
            self._cap = self.limits.cap(len(self.running) + len(self.waiting)) or ALL

    def _advance_steady(self) -> int:
        """Give each steady job its token, if there are blocks for all; return how many running jobs that settles."""
        steady, assignment = self.steady, self.latest
        if not steady.advance(self.steps):
            steady.dissolve(self.running, self.steps - 1)
            return 0
        self._budget -= len(steady.members)
        assert self._budget >= 0, "a job was admitted although those before it had taken all tokens"
        assignment.steady, assignment.offsets = steady.members, steady.offsets
        return steady.length

    def _conclude(self) -> Assignment:
        """Put the waiting queue in order again, and count the granted tokens as computed."""
        assignment, ahead = self.latest, self.limits.async_scheduling
        for job in assignment.admitted:
            self.waiting.remove(job)
        self._cadence.end(assignment.grants, self.waiting, asked=not assignment.preempted)
        for job in assignment.preempted:
            self.waiting.put_back(job)
        for grant in assignment.grants:
            job = grant.job
            job.computed += grant.tokens
            job.decoding, job.sent = grant.samples, self.steps
            job.due += grant.samples and ahead
        if self._foresees and self.steady.length < len(self.running):
            self.steady.extend(self.running, self.steps)
        return assignment

    def _extend(self, job: Job, wish: int) -> bool:
        """Grant a running job its tokens, preempting until they fit; return False if it had to give way itself."""
        due, computed = job.due, job.computed
        if self._cadence.held and not job.decoding:
            return True
        if due and (computed + 2 - due >= job.request.prompt + job.limit  # its last token is already on the way
                    or self.steps < job.step + self.limits.pipeline_parallel_size):  # the one due is not even sampled
            return True
        tokens = min(job.backlog, wish, self._cap, self._budget, self.limits.max_model_len - 1 - computed)
        if tokens <= 0:
            return True
        while not self.cache.allocate(job.block_table, computed + tokens):
            if self._preempt() is job:
                return False
        self._grant(job, tokens, admitted=False)
        return True

    def _preempt(self) -> Job:
        """Take a running job's blocks, and its grant if it has one in this step; return whose."""
        if self.counsel.chooses and self.steady.length:
            self._unsettle()
        victim = self.counsel.victim(self.running)
        if victim.step == self.steps:
            grants = self.latest.grants
            index = next(i for i, grant in enumerate(grants) if grant.job is victim)
            self._budget += grants.pop(index).tokens
        self.running.remove(victim)
        self.cache.free(victim.block_table)
        victim.state, victim.computed, victim.step = State.WAITING, 0, self.steps
        victim.preemptions += 1
        self.latest.preempted.append(victim)
        return victim

    def _unsettle(self) -> None:
        """Count the steady jobs by hand again, and write out what they were given in this step."""
        steady, assignment = self.steady, self.latest
        given, rest = assignment.steady, assignment.grants
        steady.dissolve(self.running, self.steps - 1)
        assignment.steady, assignment.offsets, assignment.grants = (), Offsets(), []
        self._budget += len(given)
        for job in given:
            steady.hold(job, job.computed + 1)
            self._grant(job, 1, admitted=False)
        assignment.grants += rest

    def _admit(self, job: Job, wish: int) -> bool:
        """Start a waiting job if there is room, or pass it over; return whether admission goes on with the next."""
        if self.latest.preempted or len(self.running) >= self.limits.active:
            return False
        if self.steady.awaits(job):  # preempted, and tokens of it are in flight, if only of a partial prompt chunk
            job.passed_over = True
            return True
        if self.counsel.demands and self.steady.length:  # who is asked must see true counts
            self._unsettle()
        hit = self.cache.find_prefix(job.block_table, job.known) if job.reads_cache else PrefixHit(0)
        computed = hit.tokens
        wanted = min(job.known - computed, wish, self._cap)
        if not self.limits.enable_chunked_prefill and wanted > self._budget:
            return False
        tokens = min(wanted, self._budget)
        if self._cadence.held and tokens > 1:
            return False
        if not self._has_room(job, hit, computed + tokens) or (
                self.counsel.demands and not self.counsel.admits(job, self.running, self.cache)):
            return False
        self.cache.attach_prefix(job.block_table, hit)
        grown = self.cache.allocate(job.block_table, computed + tokens)
        assert grown, "blocks that were free are gone"
        job.state, job.computed, job.cached = State.RUNNING, computed, computed
        job.rank, job.passed_over = self._admissions, False
        self._admissions += 1
        self.latest.admitted.append(job)
        self.running.append(job)
        self._grant(job, tokens, admitted=True)
        return True

    def _has_room(self, job: Job, hit: PrefixHit, tokens: int) -> bool:
        spare = self._spare if self.running else 0
        if self.limits.scheduler_reserve_full_isl and not self.cache.can_allocate(hit, job.known, spare):
            return False
        return self.cache.can_allocate(hit, tokens, spare)

    def _grant(self, job: Job, tokens: int, admitted: bool) -> None:
        end = job.computed + tokens
        self.cache.publish(job.block_table, min(end, job.known))
        self._budget -= tokens
        job.step = self.steps
        samples = end == job.known + job.due
        self.latest.grants.append(Grant(job, tokens, job.computed, samples, admitted, admitted or not job.decoding))

    # One return.

    def update(self, assignment: Assignment, index: int) -> list[Job]:
        """Take in that *assignment* was computed, as the engine's step number *index*; return the jobs now done."""
        steady, finished = self.steady, list[Job]()
        steady.returned, steady.index = assignment.number, index
        self.stirred |= bool(assignment.grants)  # who waits may find in the cache what they have computed
        if self.cache.publishes_computed:
            for grant in assignment.grants:
                self._share(grant)
        if assignment.epoch == steady.epoch:
            if ending := steady.ends(assignment.number):
                steady.leave(ending, self.steps)
                finished += ending
        else:
            finished += [job for job in assignment.steady if self._deliver(job, index)]
        finished += [grant.job for grant in assignment.grants if grant.samples and self._deliver(grant.job, index)]
        for job in finished:
            self._finish(job)
        return finished

    def _share(self, grant: Grant) -> None:
        """Tell the cache that a chunk of a prompt is computed; what has given way since is lost."""
        job = grant.job
        prefill = grant.admitted or grant.tokens > 1 or grant.start < job.request.prompt
        if prefill and job.state is State.RUNNING:
            self.cache.publish_computed(job.block_table, min(grant.start + grant.tokens, job.computed))

    def _deliver(self, job: Job, index: int) -> bool:
        """Give *job* the token that it was due; return whether it was its last."""
        if job.state is State.DONE:
            return False
        job.known += 1
        job.emit(1, index)
        if self.limits.async_scheduling:
            job.due -= 1
        if job.steady:
            return False
        done = job.sampled >= job.output or job.known >= self.limits.max_model_len
        if self.limits.async_scheduling and job.state is State.RUNNING:
            self.cache.publish(job.block_table, job.computed - job.due)
        return done

    def _finish(self, job: Job) -> None:
        self.stirred = True
        if job.state is State.WAITING:  # preempted while its last token was on the way
            self.waiting.remove(job)
        else:
            self.running.remove(job)
            self.cache.free(job.block_table, job.computed - job.due)
        job.state = State.DONE
