"""The running jobs that decode: each step gives each of them one token, so what will come can be foreseen.

Nothing is counted for them step by step.  A job that joins notes the schedule
with which it begins; what it has computed and knows follows from the numbers of
the latest schedule and of the latest return.  The calendar says at which
schedule a job needs a block, fills one, or gets its last token.
"""

from collections.abc import Sequence

from attrs import define, field

from ksim.memory.cache import Cache
from ksim.scheduling.job import Job


@define(eq=False)
class Steady:
    """The first `length` of the running jobs; of these, `members` get a token at every schedule.

    The others have their last token on its way.  `offsets` plus the number of a
    schedule are the members' contexts at it.  With `ahead`, a schedule is made
    before the tokens of the one before it are known.
    """

    cache: Cache
    ahead: bool
    max_model_len: int
    length: int = 0
    members: tuple[Job, ...] = ()
    offsets: tuple[int, ...] = ()
    epoch: int = 0  # grows when all leave at once
    returned: int = 0  # the latest schedule that has come back
    index: int = -1  # and the engine's number of that step
    _blocks: dict[int, list[Job]] = field(factory=dict)
    _last: dict[int, list[Job]] = field(factory=dict)

    def join(self, jobs: Sequence[Job], start: int) -> None:
        """Let *jobs*, which come after the others in order of admission, be steady from schedule *start* on."""
        for job in jobs:
            job.steady, job.start = True, start
            job.end = start - 1 + self.tokens_left(job)
            self._last.setdefault(job.end, []).append(job)
            self._plan(job, start)
        self.length += len(jobs)
        self.members += tuple(jobs)
        self.offsets += tuple(job.computed - start for job in jobs)

    def tokens_left(self, job: Job) -> int:
        """How many tokens *job* has yet to get, beyond one that is on its way."""
        return min(job.request.prompt + job.output, self.max_model_len) - (job.computed + 1)

    def advance(self, schedule: int) -> bool:
        """See to the blocks that the members need at *schedule*; return whether there were enough."""
        self._retire(schedule)
        return all(self._renew(job, schedule) for job in _due(self._blocks, schedule))

    def renew(self, schedule: int) -> bool:
        """The same at a schedule that is like the one before it; all or nothing."""
        due = self._blocks.get(schedule)
        if due and len(due) > self.cache.pool.free:
            return False
        for job in _due(self._blocks, schedule):
            renewed = self._renew(job, schedule)
            assert renewed, "one block each was free"
        return True

    def first_end(self) -> int:
        """The first schedule that yields a last token; the one after the latest that came back where nobody is here."""
        return min(self._last, default=self.returned)

    def ends(self, schedule: int) -> Sequence[Job]:
        """The jobs whose last token comes from *schedule*, in order of admission; asked once."""
        return _due(self._last, schedule)

    def leave(self, jobs: Sequence[Job], schedule: int) -> None:
        """Let *jobs* go, counted up to and with *schedule*."""
        for job in jobs:
            self._settle(job, schedule)
        self.length -= len(jobs)
        self._keep(set(jobs))

    def dissolve(self, running: Sequence[Job], schedule: int) -> None:
        """Let all go, counted up to and with *schedule*."""
        for job in running[: self.length]:
            self._settle(job, schedule)
        self.length, self.members, self.offsets = 0, (), ()
        self._blocks.clear()
        self._last.clear()
        self.epoch += 1

    def _settle(self, job: Job, schedule: int) -> None:
        """Write down what *job* has come to after *schedule*, so that it can be counted by hand again."""
        scheduled = min(schedule, self._final(job)) - job.start + 1
        back = max(0, min(self.returned, self._final(job)) - job.start + 1)
        job.steady = False
        job.computed += scheduled
        job.known += back
        if scheduled:
            job.step, job.decoding = job.start - 1 + scheduled, True
        if self.ahead:
            job.due += scheduled - back
        if back:
            job.emit(back, self.index)

    def _retire(self, schedule: int) -> None:
        """Before *schedule*: drop the members whose last token is known to be on its way."""
        spent = {job for job in self._last.get(schedule - 1, ()) if job.steady and self._final(job) < schedule}
        if self.ahead and spent:
            self._keep(spent)

    def _renew(self, job: Job, schedule: int) -> bool:
        """Take the block that *job* needs and enter the one that it fills; return whether there was one."""
        end = self._computed(job, schedule) + 1
        if not self.cache.grow(job.holding, end):
            return False
        self.cache.enter(job.holding, end - self.ahead)
        self._plan(job, schedule + 1)
        return True

    def _computed(self, job: Job, schedule: int) -> int:
        """How many tokens *job* has computed when *schedule* begins."""
        return job.computed + schedule - job.start

    def _plan(self, job: Job, first: int) -> None:
        """Enter in the calendar when, from schedule *first* on, *job* next needs or fills a block."""
        event = first + self.cache.steps_until_event(job.holding, self._computed(job, first), self.ahead)
        if event <= self._final(job):
            self._blocks.setdefault(event, []).append(job)

    def _keep(self, gone: set[Job]) -> None:
        kept = [(job, offset) for job, offset in zip(self.members, self.offsets, strict=True) if job not in gone]
        self.members = tuple(job for job, _ in kept)
        self.offsets = tuple(offset for _, offset in kept)

    def _final(self, job: Job) -> int:
        """The last schedule that has *job* in it: one too many where a stop token ends it unforeseen."""
        foreseen = job.limit <= job.output or job.request.prompt + job.output >= self.max_model_len
        return job.end if foreseen or not self.ahead else job.end + 1


def _due(calendar: dict[int, list[Job]], schedule: int) -> Sequence[Job]:
    """Take from *calendar* who is in it for *schedule*, in order of admission."""
    return sorted((job for job in calendar.pop(schedule, ()) if job.steady), key=_rank)


def _rank(job: Job) -> int:
    return job.rank
