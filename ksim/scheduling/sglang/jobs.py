"""The jobs of an engine of SGLang's: those that wait, those that decode, and what the results of batches bring.

The rules are those of SGLang 0.5.23 (srt/managers/scheduler.py and scheduler_components/batch_result_processor.py).
"""

from typing import Any, ClassVar

from attrs import define, field

from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError
from ksim.kv.cache import BlockTable
from ksim.kv.cache.radix import RadixCache
from ksim.scheduling.admissions.always import Always
from ksim.scheduling.job import Job, Schedule, ScheduledTokens, State
from ksim.scheduling.queues import PolicyGuard
from ksim.scheduling.sglang.limits import INPUT_MARGIN, SglangLimits
from ksim.scheduling.sglang.orders import SglangQueue, order_of
from ksim.scheduling.sglang.prefill_pass import NewTokenRatio
from ksim.scheduling.sglang.running_batch import RunningBatch

__all__ = ["SglangJobs"]


@define(eq=False)
class SglangJobs:
    """`batch` has the jobs that decode, `chunked` is the one whose prompt is cut, and the others wait.

    `latest` is the schedule made last, number `steps`.  `admission` must be that all may start.
    """

    limits: SglangLimits
    policy: Any
    cache: RadixCache
    admission: Any = field(factory=Always)
    batch: RunningBatch = field(init=False)
    chunked: Job | None = field(default=None, init=False)
    ratio: NewTokenRatio = field(init=False)
    latest: Schedule = field(factory=Schedule, init=False)
    guard: PolicyGuard = field(init=False)
    steps: int = field(default=0, init=False)
    retracted: list[Job] = field(factory=list, init=False)  # in the latest turn, for lack of memory
    preempted: list[Job] = field(factory=list, init=False)  # in the latest turn, for more urgent ones
    idled: bool = field(default=False, init=False)  # has the latest turn found nothing at all?
    _queue: SglangQueue = field(init=False)
    _last: Schedule | None = field(default=None, init=False)  # the batch of the turn before, if it had prompts
    _cut: tuple[Job, int] | None = field(default=None, init=False)  # whose chunk enters the tree next, and to where
    _pending_abort: Job | None = field(default=None, init=False)
    _rows: int = field(default=0, init=False)  # jobs that hold memory
    _held_turns: int = field(default=0, init=False)  # turns without a prefill that are left
    _coming: list[Job] = field(factory=list, init=False)  # who has come, and was not seen yet
    _unseen: int = field(default=0, init=False)  # decodes since the scheduler looked who has come
    _ended: list[Job] = field(factory=list, init=False)  # who has ended since the latest turn
    _prefilled: int = field(default=0, init=False)  # tokens, as SGLang counts them for `hrrn`

    #: What a scheduler of vLLM's may have beside it, and this one has not.
    spare_slots: ClassVar[int] = 0
    connector: ClassVar[None] = None
    encodes: ClassVar[bool] = False
    adapters: ClassVar[None] = None
    #: Whether an end by length is foreseen, where a turn is planned before the result of the one before it.
    foresees: ClassVar[bool] = True

    def __attrs_post_init__(self) -> None:
        limits = self.limits
        if hasattr(self.policy, "attach"):
            self.policy.attach(self.cache)
        self.guard = PolicyGuard(self.policy)
        if self.guard.proposes or self.guard.reorders:
            raise ConfigError("serve.scheduling_policy", f"{type(self.policy).__name__} proposes batches or has a queue"
                                                         f" of its own, and SGLang's scheduler asks only for an order"
                                                         f" and a victim")
        self.ratio = NewTokenRatio.of(limits.schedule_conservativeness)
        self.batch = RunningBatch(self.cache, limits.async_scheduling and self.foresees)
        self._queue = SglangQueue(limits, order_of(limits.schedule_policy, self.guard, self.cache, limits))

    # What engines ask.

    @property
    def running(self) -> list[Job]:
        """The jobs that hold memory and are not prefilled for the first time."""
        return self.batch.jobs

    @property
    def decodes(self) -> RunningBatch:
        return self.batch

    @property
    def has_requests(self) -> bool:
        return bool(self._rows or self.waiting)

    @property
    def transfers_pending(self) -> bool:
        return False

    def block_table(self, request: Request) -> BlockTable:
        """An empty block table for *request*."""
        return self.cache.block_table(request)

    def job(self, request: Request, number: int, arrived: float) -> Job:
        """The job of *request*, the *number*-th of its engine, whose output is cut to what fits."""
        cache, page = self.cache, self.cache.block_tokens
        asked = request.output if request.max_tokens is None else request.max_tokens
        limit = self.limits.most_new(request.prompt, asked, cache.capacity * page, page)
        return Job.of(request, number, page, output=min(request.output, limit), limit=limit, arrived=arrived,
                      block_table=self.block_table(request.keyed))

    def length_refusal(self, request: Request) -> str:
        """Why *request* is too long for this engine; "" if it is not."""
        pool = self.cache.capacity * self.cache.block_tokens
        most = self.limits.longest(pool) - INPUT_MARGIN
        if request.prompt < most and self.limits.most_new(request.prompt, 1, pool, self.cache.block_tokens):
            return ""
        return (f"its prompt of {request.prompt} tokens is longer than {most - 1}, which a context of"
                f" {self.limits.context_length} and a pool of {pool} allow")

    def images_refusal(self, request: Request) -> str:
        """Why the images of *request* cannot be served; "" if they can."""
        return "it has images, and the model takes none"

    @property
    def foreseen(self) -> list[list[int]]:
        """Of each job that decodes: the output tokens that it has yet to get, and those that it has computed."""
        launched = self.batch.launched
        return [[job.end - launched, job.num_computed_tokens + launched - job.start]
                for job in self.batch.jobs if job.state is State.RUNNING and job.end > launched]

    @property
    def others(self) -> list[Job]:
        """The jobs that hold memory and do not decode yet."""
        jobs = [entry.job for entry in self._last.entries] if self._last else []
        return [job for job in dict.fromkeys([*jobs, *([self.chunked] if self.chunked else [])])
                if job.state is State.RUNNING]

    @property
    def holding(self) -> list[Job]:
        """All jobs that hold memory: those that decode, or wait for their last token, and those before them."""
        jobs = dict.fromkeys([*self.batch.jobs, *self.batch.leaving, *self.others])
        return [job for job in jobs if job.state is State.RUNNING]

    # Requests come and go.

    def add(self, job: Job) -> None:
        """Let *job* come: it is seen at the latest so many decodes after others were."""
        if self.limits.scheduler_recv_interval > 1:
            self._coming.append(job)
        else:
            self._enter(job)

    def _enter(self, job: Job) -> None:
        """Let *job*, which has been seen, wait."""
        self._queue.add(job, self._prefilled)

    def _requeue(self, job: Job) -> None:
        """Let *job*, which ran, wait again."""
        self._queue.add(job, self._prefilled)

    def _look_for_jobs(self) -> None:
        """See who has come: after a turn of prompts, a turn without a batch, or so many decodes (recv_skipper.py)."""
        if self.limits.scheduler_recv_interval == 1:
            return
        decodes = self.latest and not any(entry.prompt for entry in self.latest.entries)  # with drafts, or without
        self._unseen += 1 if decodes else self.limits.scheduler_recv_interval
        if self._unseen >= self.limits.scheduler_recv_interval:
            self._unseen = 0
            for job in self._coming:
                self._enter(job)
            self._coming.clear()

    @property
    def waiting(self) -> list[Job]:
        """Who waits, in the order in which the queue was last looked at."""
        return [*self._queue.jobs, *self._coming] if self._coming else self._queue.jobs

    @property
    def rejected(self) -> list[Job]:
        """Who was refused or dropped without a result, since somebody cleared the list."""
        return self._queue.rejected

    def abort(self, job: Job) -> None:
        """Drop *job* if it waits; if it runs, it ends with the next result that it is part of."""
        if job is self.chunked:
            self._pending_abort = job
        if job.state is State.WAITING:
            (self._coming if job in self._coming else self._queue.jobs).remove(job)
            self._queue.reject(job)
        else:
            job.aborted = True
            self.batch.abort(job)

    # Results.

    def update(self, schedule: Schedule, index: int, output: object = None) -> list[Job]:
        """Take in the tokens of *schedule*, the engine's step number *index*; return the jobs now done."""
        batch, finished = self.batch, list[Job]()
        if schedule.decodes:
            ending = batch.come_back(schedule.number, index)
            if schedule.epoch == batch.epoch:
                for job in ending:
                    batch.settle(job)
                    job.num_output_placeholders = 0
                    self._finish(job)
                finished += ending
            else:
                finished += [job for job in schedule.decodes if self._deliver(job, index)]
        for entry in schedule.entries:
            if entry.samples and self._deliver_entry(entry, index):
                finished.append(entry.job)
            elif entry.samples and entry.prompt and entry.job.state is State.RUNNING:
                self.cache.publish_computed(entry.job.block_table, entry.start + entry.tokens, entry.job.request.prompt)
        for job in self.rejected:
            job.failed = True
        finished += self.rejected
        self.rejected.clear()
        return finished

    def _deliver_entry(self, entry: ScheduledTokens, index: int) -> bool:
        return self._deliver(entry.job, index)

    def _deliver(self, job: Job, index: int) -> bool:
        """Give *job* the token sampled for it; return whether it is done with that."""
        if job.state is not State.RUNNING or not job.num_output_placeholders:  # it has ended, or lost the token
            return False
        job.num_tokens += 1
        job.num_output_placeholders -= 1
        job.emit(1, index)
        if job.in_decode_set:
            self.batch.receive(job)
        if not job.aborted and job.sampled < min(job.output, max(job.limit, 1)):
            return False
        self._finish(job)
        return True

    def _finish(self, job: Job) -> None:
        """End *job*; the tree keeps what it computed."""
        self._ended.append(job)
        if job.in_decode_set:
            self.batch.settle(job)
        tokens = min(job.num_computed_tokens, job.num_tokens)
        self._release(job, tokens)

    def _release(self, job: Job, tokens: int = 0) -> None:
        self._give_back(job, tokens)
        job.state = State.DONE

    def _give_back(self, job: Job, tokens: int = 0) -> None:
        self.cache.assign(job.block_table, job.num_computed_tokens)
        self.cache.free(job.block_table, tokens, job.request.prompt)
        self.batch.leaving.pop(job, None)
        self._rows -= 1
