"""The running jobs that decode: each gets one token a step, so what will come can be foreseen.

Nothing is counted for them step by step.  A job that joins notes the step with
which it begins.  Its counts of tokens follow from that, the number of the latest
step, and the latest step that has come back.  A calendar says at which step a job
gets its last token.  Where no other job can find its blocks in the cache, it needs
a new block every `block_tokens` steps, and the jobs that need one at the same step
are counted together; for the others, the calendar has the steps at which they need
or fill a block.  A step is a call of `Scheduler.schedule`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush

from attrs import define, field

from ksim.flow.batch import Offsets
from ksim.kv.cache import Cache
from ksim.scheduling.job import Job, Run

#: Values of `Job.needs`: its blocks are in the calendar; they are counted together, and it needs no more.
CALENDAR, ENOUGH = -1, -2


@define(eq=False)
class DecodeSet:
    """The first `length` of the running jobs; of these, `members` get a token at every step.

    The other jobs of the set wait for their last token, which is in flight.
    `offsets` plus the number of a step are the members' contexts at it.  With
    `ahead`, a step is scheduled before the tokens of the one before it are known.
    """

    cache: Cache
    ahead: bool
    max_model_len: int
    length: int = 0
    members: tuple[Job, ...] = ()
    offsets: Offsets = Offsets()
    epoch: int = 0  # grows when all leave at once
    returned: int = 0  # the latest step that has come back
    index: int = -1  # and the engine's number of that step
    each: int = 1  # blocks that a job needs at once
    grown: Sequence[Job] = ()  # those that, at step `grown_at`, got a block from the calendar or filled one
    grown_at: int = -1
    _blocks: dict[int, list[Job]] = field(factory=dict)
    _last: dict[int, list[Job]] = field(factory=dict)
    _ends: list[int] = field(factory=list)  # a heap of when `_last` has somebody, or had
    _needs: Counter[int] = field(factory=Counter)  # by the remainder of the step's number: who needs a block at it

    def extend(self, running: Sequence[Job], step: int) -> None:
        """Let those of the *running* jobs join, in their order, that only decode after *step*."""
        first = last = self.length
        while last < len(running) and self._will_decode(running[last], step):
            last += 1
        if last > first:
            self.join(running[first:last], step + 1)

    def _will_decode(self, job: Job, step: int) -> bool:
        return job.step == step and job.decoding and self.tokens_left(job) > 0

    def join(self, jobs: Sequence[Job], start: int) -> None:
        """Let *jobs*, which come after the others in order of admission, be in the set from step *start* on."""
        for job in jobs:
            job.in_decode_set, job.start = True, start
            job.end = start - 1 + self.tokens_left(job)
            if job.end not in self._last:
                heappush(self._ends, job.end)
            self._last.setdefault(job.end, []).append(job)
            self._plan(job, start)
        self.length += len(jobs)
        self.members += tuple(jobs)
        self.offsets = self.offsets.plus([job.num_computed_tokens - start for job in jobs])

    def tokens_left(self, job: Job) -> int:
        """How many tokens *job* has yet to get, beyond one that is in flight."""
        return min(job.request.prompt + job.output, self.max_model_len) - (job.num_computed_tokens + 1)

    def decoding(self, step: int) -> int:
        """How many jobs get a token at *step*, the next one, if there are blocks."""
        self._retire(step)
        return len(self.members)

    def advance(self, step: int) -> bool:
        """Allocate the blocks that the members need at *step*; return whether there were enough."""
        self._retire(step)
        return self.renew(step)

    def renew(self, step: int) -> bool:
        """Do the same where no member has left since the step before; without enough blocks, nothing is done."""
        needs, due = self._needs.get(step % self.cache.block_tokens, 0), self._blocks.get(step)
        if due and not self._afford(due, needs, step):
            return False
        if needs and not self.cache.reserve(needs):
            return False
        if due:
            self.grown, self.grown_at = _due(self._blocks, step), step
            for job in self.grown:
                self._renew(job, step)
        return True

    def affords(self, steps: int, latest: int) -> int:
        """For how many of the *steps* after the *latest* there are blocks for certain, if no member leaves."""
        free, size = self.cache.pool.free, self.smallest_block
        most = len(self.members) * self.each  # blocks that are needed at once
        if most * (steps // size + 1) <= free:
            return steps
        rest, needed = most - sum(self._needs.values()), 0
        for ahead in range(1, steps + 1):
            needed += self._needs.get((latest + ahead) % self.cache.block_tokens, 0)
            if needed + rest * (ahead // size + 1) > free:
                return ahead - 1
        return steps

    @property
    def smallest_block(self) -> int:
        """The tokens of the smallest of its blocks."""
        return self.cache.block_tokens

    def _afford(self, due: Sequence[Job], needs: int, step: int) -> bool:
        """Whether blocks are free for the jobs *due* at *step*, and *needs* more."""
        return needs + len(due) <= self.cache.pool.free

    @property
    def findable(self) -> bool:
        """Whether other jobs may find blocks in the cache that a member fills before it ends."""
        return bool(self._blocks) and not self.cache.publishes_computed

    def next_growth(self) -> int | None:
        """The first step at which the calendar has a job that needs a block or fills one, if it has any."""
        return min(self._blocks, default=None)

    def awaits(self, job: Job) -> bool:
        """Whether a batch with tokens of *job*, of the set or not, is in flight."""
        return job.sent > self.returned

    def first_end(self) -> int:
        """The first step that yields a job's last token; the latest that came back if the set is empty."""
        ends = self._ends
        while ends and ends[0] not in self._last:
            heappop(ends)
        return ends[0] if ends else self.returned

    def ends(self, step: int) -> Sequence[Job]:
        """Take from the calendar the jobs whose last token comes from *step*, in order of admission."""
        return _due(self._last, step) if step in self._last else ()

    def leave(self, jobs: Sequence[Job], step: int) -> None:
        """Let *jobs* leave after *step*."""
        self._drop(jobs)
        for job in jobs:
            self._settle(job, step)
        self.length -= len(jobs)

    def dissolve(self, running: Sequence[Job], step: int) -> None:
        """Let all jobs leave after *step*."""
        for job in running[: self.length]:
            self._settle(job, step)
        self.length, self.members, self.offsets = 0, (), Offsets()
        self._needs.clear()
        self._blocks.clear()
        self._last.clear()
        self._ends.clear()
        self.epoch += 1

    def _settle(self, job: Job, step: int) -> None:
        """Bring the counts of *job* up to date after *step*: it leaves the set."""
        scheduled = min(step, self._final(job)) - job.start + 1
        back = max(0, min(self.returned, self._final(job)) - job.start + 1)
        job.in_decode_set = False
        job.num_computed_tokens += scheduled
        job.num_tokens += back
        if scheduled:
            job.step = job.sent = job.start - 1 + scheduled
            job.decoding = True
        if self.ahead:
            job.num_output_placeholders += scheduled - back
        if back:
            job.emit(back, self.index)
        self.hold(job, job.num_computed_tokens)
        if job.needs != CALENDAR:
            self.cache.publish(job.block_table, job.num_computed_tokens - job.num_output_placeholders)

    def hold(self, job: Job, tokens: int) -> None:
        """Have *job*, which has left the set, hold what was taken for its first *tokens* tokens."""
        if job.needs != CALENDAR:
            self.cache.assign(job.block_table, tokens)

    def emitted(self, job: Job) -> list[Run]:
        """The tokens of *job*, of the set or not, by the steps that have come back."""
        back = min(self.returned, self._final(job)) - job.start + 1 if job.in_decode_set else 0
        return [*job.emitted, Run(self.index - back + 1, self.index, 1)] if back > 0 else job.emitted

    def _retire(self, step: int) -> None:
        """Before *step*: drop the members whose last token is known to be in flight."""
        if self.ahead and (ending := self._last.get(step - 1)):
            self._drop([job for job in ending if job.in_decode_set and self._final(job) < step])

    def _drop(self, jobs: Sequence[Job]) -> None:
        """Let those of *jobs* that are members get no more tokens."""
        for job in jobs:
            index = bisect_left(self.members, job.rank, key=_rank)
            if index < len(self.members) and self.members[index] is job:
                self.members = self.members[:index] + self.members[index + 1:]
                self.offsets = self.offsets.without(index)
                if job.needs >= 0:
                    self._needs[job.needs] -= self.each
                    job.needs = ENOUGH

    def _renew(self, job: Job, step: int) -> None:
        """Allocate the block that *job* needs, which is free, and publish the one that it fills."""
        end = self._computed(job, step) + 1
        grown = self.cache.allocate(job.block_table, end)
        assert grown, "one block each was free"
        self.cache.publish(job.block_table, end - self.ahead)
        self._plan(job, step + 1)

    def _computed(self, job: Job, step: int) -> int:
        """How many tokens *job* has computed when *step* begins."""
        return job.num_computed_tokens + step - job.start

    def _plan(self, job: Job, first: int) -> None:
        """Note when, from step *first* on, *job* next needs or fills a block."""
        computed = self._computed(job, first)
        if self.cache.is_private(job.block_table):
            self._count(job, first + job.block_table.num_slots - computed)
            return
        job.needs = CALENDAR
        event = first + self.cache.steps_until_change(job.block_table, computed, self.ahead)
        if event <= self._final(job):
            self._blocks.setdefault(event, []).append(job)

    def _count(self, job: Job, step: int) -> None:
        """Count *job* among those that need a block at *step*, and again whenever they have filled it."""
        job.needs = step % self.cache.block_tokens
        self._needs[job.needs] += self.each

    def _final(self, job: Job) -> int:
        """The last step with a token of *job*: one too many where a stop token ends it unforeseen."""
        foreseen = job.limit <= job.output or job.request.prompt + job.output >= self.max_model_len
        return job.end if foreseen or not self.ahead else job.end + 1


def _due(calendar: dict[int, list[Job]], step: int) -> Sequence[Job]:
    """Take the jobs of *step* from *calendar*, in order of admission."""
    return sorted((job for job in calendar.pop(step, ()) if job.in_decode_set), key=_rank)


def _rank(job: Job) -> int:
    return job.rank
