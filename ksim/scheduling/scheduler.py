"""Form batches within the limits, and take in what they computed.

The rules are those of vLLM's V1 scheduler (0.33): there is no prefill phase and
no decode phase, only jobs whose computed tokens catch up with what they know.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from attrs import define, field

from ksim.foundation.errors import ConfigError
from ksim.memory.kv_cache import KVCache
from ksim.memory.radix import Node
from ksim.scheduling.assignment import Assignment, Grant
from ksim.scheduling.cadence import Cadence
from ksim.scheduling.job import Job, State
from ksim.scheduling.limits import Limits
from ksim.scheduling.policies import ALL, Wish
from ksim.scheduling.queue import ArrivalQueue, SortedQueue, WaitingQueue
from ksim.scheduling.steady import Steady


class _Open:
    """A view of the waiting queue that ends when admission does."""

    __slots__ = ("admitting", "queue")

    def __init__(self, queue: WaitingQueue) -> None:
        self.queue = queue
        self.admitting = True

    def __iter__(self) -> Iterator[Job]:
        for job in self.queue:
            if not self.admitting:
                return
            yield job

    def __len__(self) -> int:
        return len(self.queue)


@define
class Scheduler:
    """`running` jobs hold cache blocks, in order of admission; waiting ones hold none."""

    limits: Limits
    policy: Any
    cache: KVCache
    waiting: WaitingQueue = field(init=False)
    running: list[Job] = field(factory=list, init=False)
    steps: int = field(default=0, init=False)
    _budget: int = field(default=0, init=False)
    _cap: int = field(default=0, init=False)
    _assignment: Assignment = field(factory=Assignment, init=False)
    _spare: int = field(init=False)
    _cadence: Cadence = field(init=False)
    _steady: Steady = field(init=False)
    _admissions: int = field(default=0, init=False)
    _foresees: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        order = getattr(self.policy, "order", None)
        self.waiting = SortedQueue(order) if order else ArrivalQueue()
        self._spare = int(self.limits.watermark * (self.cache.capacity + 1))
        self._cadence = Cadence(self.limits.prefill_schedule_interval)
        self._steady = Steady(self.limits.async_scheduling, self.cache.prefix_caching, self.cache.block_tokens,
                              self.limits.max_model_len)
        # A policy that orders each step, a cadence and a pipeline all let a decode wait: nothing is steady then.
        self._foresees = (not hasattr(self.policy, "propose") and self.limits.prefill_schedule_interval == 1
                          and self.limits.pipeline_parallel_size == 1)

    def add(self, job: Job) -> None:
        """Let *job* wait for its turn."""
        self.waiting.add(job)

    def abort(self, job: Job) -> None:
        """Drop *job* wherever it is; what it has in flight is lost."""
        if job.state is State.WAITING:
            self.waiting.remove(job)
        elif job.state is State.RUNNING:
            if job.steady:
                self._steady.leave([job], self.steps)
            self.running.remove(job)
            self.cache.close(job.holding)
        job.state = State.DONE

    # One schedule.

    def schedule(self, now: float) -> Assignment:
        """Grant the policy's wishes until tokens, jobs or blocks run out.

        A running job that gets no block makes a victim give way.  A waiting one
        that gets none ends admission for this step, and so does a preemption.
        """
        self._begin()
        self._cadence.begin(self.running)
        running = self.running[self._advance_steady():]
        waiting = _Open(self.waiting)
        admitted: list[Job] = []
        left = len(running)  # running jobs not yet heard of
        for job, wish in self._wishes(waiting, running, now):
            if self._budget == 0:
                break
            if job.step == self.steps or wish < 1:
                left -= self._heard(job, wish)
            elif job.state is State.RUNNING:
                left -= 1
                self._extend(job, wish)
            elif waiting.admitting and job.due == 0:  # what is due must come back before it starts over
                waiting.admitting = self._admit(job, wish)
                if waiting.admitting:
                    admitted.append(job)
            if not waiting.admitting and left == 0:
                break
        return self._conclude(admitted)

    def _heard(self, job: Job, wish: int) -> bool:
        """Whether *job*, which needs no tokens now, was preempted before its turn came; anything else is a mistake."""
        if wish >= 1 and job in self._assignment.preempted:
            return True
        mistake = f"wishes {wish} tokens for" if wish < 1 else "proposes twice"
        raise ConfigError(f"policy {type(self.policy).__name__}", f"{mistake} request {job.request.id}"
                                                                  f" in step {self.steps}")

    def _begin(self) -> None:
        self.steps += 1
        self._assignment = Assignment(self.steps, self._steady.epoch)
        self._budget = self.limits.max_num_batched_tokens
        live = len(self.running) + len(self.waiting)
        self._cap = self.limits.long_prefill_token_threshold if live > 1 else 0
        if self._cap and self.limits.long_prefill_token_threshold_adaptive:
            self._cap = max(self._cap, self._budget // live)

    def _advance_steady(self) -> int:
        """Give each steady job its token, if all can have one; return how many running jobs that settles."""
        steady = self._steady
        steady.retire(self.steps)
        fits = len(steady.members) <= self._budget
        if not (fits and all(self._renew(job) for job in steady.cache_events(self.steps))):
            steady.dissolve(self.running, self.steps - 1)
            return 0
        self._budget -= len(steady.members)
        self._assignment.epoch = steady.epoch
        self._assignment.steady, self._assignment.offsets = steady.members, steady.offsets
        return steady.length

    def _renew(self, job: Job) -> bool:
        """Take the block that *job* needs and enter the one that it fills; return whether there was one."""
        steady = self._steady
        end = steady.computed(job, self.steps) + 1
        if not self.cache.grow(job.holding, end):
            return False
        self.cache.enter(job.holding, end - steady.ahead)
        steady.plan(job, self.steps + 1)
        return True

    def _wishes(self, waiting: _Open, running: Sequence[Job], now: float) -> Iterable[Wish]:
        if (propose := getattr(self.policy, "propose", None)) is not None:
            wishes: Iterable[Wish] = propose(waiting, running, now)
            return wishes
        return zip(chain(running, waiting), repeat(ALL), strict=False)

    def _conclude(self, admitted: Sequence[Job]) -> Assignment:
        """Put the waiting queue in order again, and count the granted tokens as computed."""
        for job in admitted:
            self.waiting.remove(job)
        self._cadence.end(self._assignment.grants, len(self.waiting), asked=not self._assignment.preempted)
        for job in self._assignment.preempted:
            self.waiting.put_back(job)
        for grant in self._assignment.grants:
            job = grant.job
            job.computed += grant.tokens
            job.decoding = grant.samples
            job.due += grant.samples and self.limits.async_scheduling
        if self._foresees:
            self._settle_down()
        return self._assignment

    def _settle_down(self) -> None:
        """Call steady those running jobs, next after the others that are, that will decode from now on."""
        first = last = self._steady.length
        while last < len(self.running) and self._will_decode(self.running[last]):
            last += 1
        if last > first:
            self._steady.join(self.running[first:last], self.steps + 1)

    def _will_decode(self, job: Job) -> bool:
        return job.step == self.steps and job.decoding and self._steady.tokens_left(job) > 0

    def _capped(self, tokens: int) -> int:
        """No more than one job's share of a step."""
        return self._cap if 0 < self._cap < tokens else tokens

    def _extend(self, job: Job, wish: int) -> None:
        """Grant a running job its tokens, preempting until they fit or it must itself give way."""
        due, computed = job.due, job.computed
        if self._cadence.held and not job.decoding:
            return
        if due and (computed + 2 - due >= job.request.prompt + job.limit  # its last token is already on the way
                    or self.steps < job.step + self.limits.pipeline_parallel_size):  # the one due is not even sampled
            return
        tokens = min(self._capped(min(job.backlog, wish)), self._budget, self.limits.max_model_len - 1 - computed)
        if tokens <= 0:
            return
        while not self.cache.grow(job.holding, computed + tokens):
            victim = self._victim()
            self._preempt(victim)
            if victim is job:
                return
        self._grant(job, tokens, admitted=False)

    def _victim(self) -> Job:
        choose = getattr(self.policy, "victim", None)
        victim: Job = choose(self.running) if choose else self.running[-1]
        return victim

    def _preempt(self, victim: Job) -> None:
        """Take *victim*'s blocks, and its grant if it has one in this step."""
        if victim.steady:
            self._unsettle()
        if victim.step == self.steps:
            grants = self._assignment.grants
            index = next(i for i, grant in enumerate(grants) if grant.job is victim)
            self._budget += grants.pop(index).tokens
        self.running.remove(victim)
        self.cache.close(victim.holding)
        victim.state, victim.computed, victim.step = State.WAITING, 0, self.steps
        victim.preemptions += 1
        self._assignment.preempted.append(victim)

    def _unsettle(self) -> None:
        """Write out what the steady jobs were given in this step: one of them is to lose it."""
        steady, assignment = self._steady, self._assignment
        given, rest = assignment.steady, assignment.grants
        steady.dissolve(self.running, self.steps - 1)
        assignment.steady, assignment.offsets, assignment.grants = (), (), []
        self._budget += len(given)
        for job in given:
            self._grant(job, 1, admitted=False)
        assignment.grants += rest

    def _admit(self, job: Job, wish: int) -> bool:
        """Start a waiting job, if there is room; return whether it was started."""
        if self._assignment.preempted or len(self.running) >= self.limits.active:
            return False
        hits = self.cache.lookup(job.holding, job.known) if job.reads_cache else []
        computed = len(hits) * self.cache.block_tokens
        wanted = self._capped(min(job.known - computed, wish))
        if not self.limits.enable_chunked_prefill and wanted > self._budget:
            return False
        tokens = min(wanted, self._budget)
        if self._cadence.held and tokens > 1:
            return False
        if not self._has_room(job, hits, computed + tokens):
            return False
        self.cache.open(job.holding, hits)
        grown = self.cache.grow(job.holding, computed + tokens)
        assert grown, "blocks that were free are gone"
        job.state, job.computed, job.cached = State.RUNNING, computed, computed
        job.rank = self._admissions
        self._admissions += 1
        self.running.append(job)
        self._grant(job, tokens, admitted=True)
        return True

    def _has_room(self, job: Job, hits: Sequence[Node], tokens: int) -> bool:
        spare = self._spare if self.running else 0
        if self.limits.scheduler_reserve_full_isl and not self.cache.fits(hits, job.known, spare):
            return False
        return self.cache.fits(hits, tokens, spare)

    def _grant(self, job: Job, tokens: int, admitted: bool) -> None:
        end = job.computed + tokens
        self.cache.enter(job.holding, min(end, job.known))
        self._budget -= tokens
        job.step = self.steps
        samples = end == job.known + job.due
        self._assignment.grants.append(Grant(job, tokens, job.computed, samples, admitted))

    # One return.

    def update(self, assignment: Assignment, index: int) -> list[Job]:
        """Take in that *assignment* has been computed, as the engine's step number *index*; return the jobs now done."""
        steady, finished = self._steady, list[Job]()
        steady.returned, steady.index = assignment.number, index
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
            self.cache.enter(job.holding, job.computed - job.due)
        return done

    def _finish(self, job: Job) -> None:
        if job.state is State.WAITING:  # preempted while its last token was on the way
            self.waiting.remove(job)
        else:
            if self.limits.async_scheduling:
                self.cache.enter(job.holding, job.computed - job.due)
            self.running.remove(job)
            self.cache.close(job.holding)
        job.state = State.DONE
