"""The jobs of an engine with a KV connector, and what its workers report: loads and sends that end or fail."""

from attrs import define, field

from ksim.scheduling.connector import Connector, ConnectorOutput
from ksim.scheduling.draft_scheduler import DraftScheduler
from ksim.scheduling.job import Job, State
from ksim.scheduling.queue import HoldingQueue
from ksim.scheduling.schedule import Schedule, ScheduledTokens
from ksim.scheduling.transfer_state import InvalidBlocks, TransferState

NOTHING = ConnectorOutput()


@define(eq=False)
class ConnectorQueues(DraftScheduler):
    """Loading jobs are among the `waiting` ones; `transfers` has what holds blocks beside running jobs.

    On an engine that consumes KV, blocks of a job are not freed, and the job is not preempted, while a batch with its
    tokens is in flight.  On one that only produces KV, such tokens are dropped.
    """

    connector: Connector = field(kw_only=True)  # type: ignore[misc]
    waiting: HoldingQueue = field(init=False)
    transfers: TransferState = field(init=False)
    _defers_frees: bool = field(init=False)
    _ended: bool = field(default=False, init=False)  # has a job ended since the latest schedule?
    _batch: int = field(default=0, init=False)  # the schedule with tokens before the latest one
    _sends: list[Job] = field(factory=list, init=False)
    _dropped: dict[Job, int] = field(factory=dict, init=False)  # output of schedules up to that number is not for them
    _truncated: set[Job] = field(factory=set, init=False)  # jobs that get no token from the batch that is taken in

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.waiting = HoldingQueue(self.guard.holding_queue(), self.waiting)
        self.transfers = TransferState(self.cache)
        self._defers_frees = self.connector.consumes and self.limits.depth > 1

    @property
    def has_requests(self) -> bool:
        return bool(self.running or self.waiting or self.transfers.held or self._ended or self.connector.copying)

    @property
    def transfers_pending(self) -> bool:
        return bool(self.transfers.held) or self.connector.copying or any(
            job.state is State.LOADING and job not in self.transfers.received for job in self.waiting.holding)

    def add(self, job: Job) -> None:
        super().add(job)
        self.connector.came(job)

    def abort(self, job: Job) -> None:
        """Drop *job*, wherever it is; blocks that a load fills stay until it has ended."""
        if job.state is State.DONE:
            return
        waited, loads = job.state is not State.RUNNING, self._loads(job)
        super().abort(job)
        if waited:
            self._free_or_hold(job, loads)
        self._note_end(job, complete=False)

    def _loads(self, job: Job) -> bool:
        """Whether a load of *job* is on its way."""
        return job.state is State.LOADING and job not in self.transfers.received

    def _free_or_hold(self, job: Job, loads: bool) -> None:
        """Give back the blocks of *job*, which does not run, or hold them while it *loads*."""
        if loads:
            self.transfers.held[job] = None
        else:
            self.cache.free(job.block_table)

    def _note_end(self, job: Job, complete: bool) -> bool:
        """Note that *job* has ended; return whether its blocks are to be sent."""
        self._ended = self.changed = True
        self.transfers.forget(job)
        self._dropped.pop(job, None)
        return self.connector.holds(job, complete)

    # Updates.

    def update(self, schedule: Schedule, index: int, output: ConnectorOutput | None = None) -> list[Job]:
        """Take in the tokens of *schedule* and what the workers report; return the jobs now done, or failed."""
        output = output or NOTHING
        freed = self.transfers.free_deferred(schedule.number)
        failing = self._truncate_invalid(output, schedule) if output.failed else {}
        finished = super().update(schedule, index)
        for job, place in failing.items():
            self._fail(job, place)
            finished.append(job)
        self._truncated.clear()
        self.transfers.receive(output.received)
        self.transfers.end_held(output.sent)
        if output.copied:
            self.connector.take(output.copied)
        self.changed |= bool(freed or output.received or output.sent or output.copied or failing)
        return finished

    def _truncate_invalid(self, output: ConnectorOutput, schedule: Schedule) -> dict[Job, int]:
        """Cut the jobs with blocks that could not be loaded back to what is good.

        Return those that fail, and the place of the first block that each must lose.
        """
        self.decodes.dissolve(self.running, self.steps)
        scheduled = {entry.job: entry.tokens for entry in schedule.all_entries()}
        bad, places = InvalidBlocks(self.cache, output.failed), dict[Job, int]()
        for job in [job for job in self.waiting.holding if job.state is State.LOADING]:
            self._truncate(job, bad, job.num_computed_tokens, places)
        for job in self.running:
            self._truncate(job, bad, job.num_computed_tokens - scheduled.get(job, 0), places)
        return {} if self.connector.recomputes else places

    def _truncate(self, job: Job, bad: InvalidBlocks, computed: int, places: dict[Job, int]) -> None:
        """Cut *job*, which had *computed* tokens, to before its first bad block, and note its place in *places*."""
        hit, place = bad.charge(job, self.cache.blocks(computed))
        if not hit:
            return
        if place is not None:
            computed = place * self.cache.block_tokens
        job.num_computed_tokens = computed
        places[job] = self.cache.blocks(computed)
        if job.state is State.RUNNING:
            self._truncated.add(job)
            job.decoding = False

    def _fail(self, job: Job, place: int) -> None:
        """End *job*, which could not load its block at *place*."""
        loads = self._loads(job)
        if job.state is State.RUNNING:
            self.running.remove(job)
            self.cache.invalidate(job.block_table, place)
            self._release(job)
        else:
            self.waiting.remove(job)
            self._free_or_hold(job, loads)
        job.state, job.failed = State.DONE, True
        self._note_end(job, complete=False)

    def _finish(self, job: Job) -> None:
        held = self._note_end(job, complete=True)
        if not held or job.state is not State.RUNNING:
            super()._finish(job)
            return
        self.running.remove(job)
        job.state = State.DONE
        self._publish(job, job.num_computed_tokens - job.num_output_placeholders)
        self.transfers.held[job] = None
        self._sends.append(job)

    def _release(self, job: Job, tokens: int = 0) -> None:
        if self._defers_frees and self.decodes.awaits(job):
            self._publish(job, tokens)
            self.transfers.deferred_frees.append((self._newest, job))
        else:
            super()._release(job, tokens)

    @property
    def _newest(self) -> int:
        """The number of the latest schedule with tokens."""
        return self.latest.number if self.latest else self._batch

    def _publish(self, job: Job, tokens: int) -> None:
        self.cache.publish(job.block_table, tokens)
        if self.cache.publishes_computed:
            self.cache.publish_computed(job.block_table, tokens)

    def _takes(self, job: Job) -> bool:
        return (super()._takes(job) and job not in self._truncated
                and self._dropped.get(job, -1) < self.decodes.returned)

    def _deliver(self, job: Job, index: int) -> bool:
        if (self._truncated or self._dropped) and not self._takes(job):
            return False
        return super()._deliver(job, index)

    def _share(self, entry: ScheduledTokens) -> None:
        if self._takes(entry.job):
            super()._share(entry)
