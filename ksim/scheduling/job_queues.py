"""The jobs of an engine: those that wait, those that run, and what their batches bring back."""

from typing import Any, ClassVar

from attrs import define, field

from ksim.flow.request import Request
from ksim.kv.cache import BlockTable, Cache
from ksim.scheduling.adapter_store import AdapterStore
from ksim.scheduling.admissions.always import Always
from ksim.scheduling.connector import Connector, ConnectorOutput
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Job, Limits, State
from ksim.scheduling.policy_guard import PolicyGuard, WaitingQueue
from ksim.scheduling.schedule import Schedule, ScheduledTokens


@define(eq=False)
class JobQueues:
    """`running` jobs hold cache blocks, in order of admission; waiting ones hold none.

    The first of the running jobs are in the set `decodes`.  `latest` is the
    schedule made last, number `steps`; `changed` says whether any job has come,
    gone or computed a prompt since.
    """

    limits: Limits
    policy: Any
    cache: Cache
    admission: Any = field(factory=Always)
    waiting: WaitingQueue = field(init=False)
    running: list[Job] = field(factory=list, init=False)
    steps: int = field(default=0, init=False)
    latest: Schedule = field(factory=Schedule, init=False)
    guard: PolicyGuard = field(init=False)
    decodes: DecodeSet = field(init=False)
    changed: bool = field(default=True, init=False)

    #: Slots that a job may need beyond its tokens: for drafted ones, and for a drafter with KV of its own.
    spare_slots: ClassVar[int] = 0
    #: What loads and sends KV; only a `ConnectorScheduler` has one.
    connector: ClassVar[Connector | None] = None
    #: Whether chunks of prompts may end before images; only those of an `ImageScheduler` may.
    encodes: ClassVar[bool] = False
    #: Where LoRA adapters are; only an `AdapterScheduler` has some.
    adapters: ClassVar[AdapterStore | None] = None

    @property
    def releases_soon(self) -> bool:
        """Whether jobs that only decode still hold something that waiting ones may need, other than blocks."""
        return False

    def __attrs_post_init__(self) -> None:
        if hasattr(self.policy, "attach"):
            self.policy.attach(self.cache)
        self.guard = PolicyGuard(self.policy, self.admission)
        self.waiting = self.guard.queue()
        self.decodes = DecodeSet(self.cache, self.limits.async_scheduling, self.limits.max_model_len)

    @property
    def has_requests(self) -> bool:
        """Whether vLLM's engine core would take another turn: jobs wait or run (or blocks are held)."""
        return bool(self.running or self.waiting)

    @property
    def transfers_pending(self) -> bool:
        """Whether the workers have yet to report the end of a load or of a send."""
        return False

    def block_table(self, request: Request) -> BlockTable:
        """An empty block table for *request*."""
        return self.cache.block_table(request)

    def images_refusal(self, request: Request) -> str:
        """Why the images of *request* cannot be served; "" if they can."""
        return "it has images, and the model takes none"

    @property
    def limits_adapters(self) -> bool:
        """Whether a waiting job may be passed over because of its LoRA adapter."""
        return False

    def next_in_line(self, waiting: WaitingQueue) -> Job | None:
        """The first of the *waiting* jobs that admission does not pass over, if there is one."""
        return next(iter(waiting), None)

    def add(self, job: Job) -> None:
        """Add *job* to the waiting queue."""
        self.changed = True
        self.waiting.add(job)

    def abort(self, job: Job) -> None:
        """Drop *job*, waiting or running; its tokens in flight are lost."""
        self.changed = True
        if job.state in (State.WAITING, State.LOADING):
            self.waiting.remove(job)
        elif job.state is State.RUNNING:
            if job.in_decode_set:
                self.decodes.leave([job], self.steps)
            self.running.remove(job)
            self._release(job)
        job.state = State.DONE

    def update(self, schedule: Schedule, index: int, output: ConnectorOutput | None = None) -> list[Job]:
        """Take in the tokens of *schedule*, which was the engine's step number *index*; return the jobs now done.

        vLLM's `update_from_output`.  *output* is what the workers of a KV connector report with it.
        """
        decodes, finished = self.decodes, list[Job]()
        decodes.returned, decodes.index = schedule.number, index
        self.changed |= bool(schedule.entries)  # waiting jobs may find the computed tokens in the cache
        if self.cache.publishes_computed:
            for entry in schedule.entries:
                self._share(entry)
        if schedule.epoch == decodes.epoch:
            if ending := decodes.ends(schedule.number):
                decodes.leave(ending, self.steps)
                finished += ending
        else:
            finished += [job for job in schedule.decodes if self._deliver(job, index)]
        finished += self._deliver_entries(schedule, index)
        for job in finished:
            self._finish(job)
        return finished

    def _share(self, entry: ScheduledTokens) -> None:
        """Tell the cache that a chunk of a prompt is computed, unless its job was preempted since."""
        job = entry.job
        prefill = entry.admitted or entry.tokens > 1 or entry.start < job.request.prompt
        if prefill and job.state is State.RUNNING:
            self.cache.publish_computed(job.block_table, min(entry.start + entry.tokens, job.num_computed_tokens))

    def _deliver_entries(self, schedule: Schedule, index: int) -> list[Job]:
        """Give the jobs of the entries of *schedule* their tokens; return those that are done."""
        return [entry.job for entry in schedule.entries if entry.samples and self._deliver(entry.job, index)]

    def _deliver(self, job: Job, index: int) -> bool:
        """Give *job* the token sampled for it; return whether it is its last."""
        if job.state is State.DONE:
            return False
        job.num_tokens += 1
        job.emit(1, index)
        if self.limits.async_scheduling:
            job.num_output_placeholders -= 1
        if job.in_decode_set:
            return False
        done = job.sampled >= job.output or job.num_tokens >= self.limits.max_model_len
        if self.limits.async_scheduling and job.state is State.RUNNING:
            self.cache.publish(job.block_table, job.num_computed_tokens - job.num_output_placeholders)
        return done

    def _finish(self, job: Job) -> None:
        self.changed = True
        if job.state is State.WAITING:  # preempted while its last token was in flight
            self.waiting.remove(job)
        else:
            self.running.remove(job)
            self._release(job, job.num_computed_tokens - job.num_output_placeholders)
        job.state = State.DONE

    def _release(self, job: Job, tokens: int = 0) -> None:
        """Give back the blocks of *job*, which has ended; if it is complete, so many *tokens* are computed."""
        self.cache.free(job.block_table, tokens)

    # Schedules that ScheduleForecast knows to be just like the latest need not be made.

    def repeat(self) -> bool:
        """Make a schedule like the latest one; return False, with nothing done, where blocks are short."""
        if not self.decodes.renew(self.steps + 1):
            return False
        self.steps += 1
        return True

    def sync(self, index: int) -> Schedule:
        """Catch up after repeats: the engine's steps up to number *index* are back; return the latest schedule."""
        decodes = self.decodes
        decodes.returned, decodes.index = self.steps - self.limits.async_scheduling, index
        return self.repeated()

    def repeated(self) -> Schedule:
        """The schedule that the last repeat made."""
        self.latest = Schedule(self.steps, self.decodes.epoch, self.decodes.members, self.decodes.offsets)
        return self.latest
