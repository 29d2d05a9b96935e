"""The scheduler of an engine with a KV connector: jobs wait for KV from elsewhere, as in vLLM 0.33.

`ConnectorQueues` has these jobs, and takes in what workers report: loads and sends that end or fail.
"""

from collections.abc import Sequence

from attrs import define, field

from ksim.kv.cache import PrefixHit
from ksim.scheduling.connector import Connector, ConnectorOutput, InvalidBlocks, TransferState
from ksim.scheduling.draft_scheduler import DraftScheduler
from ksim.scheduling.job import Job, Load, Schedule, ScheduledTokens, State
from ksim.scheduling.queues import HoldingQueue, WaitingQueue
from ksim.scheduling.scheduler import Rules, Scheduler

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
        hit, index = bad.charge(job, self.cache.blocks(computed))
        if not hit:
            return
        if index is not None:
            computed = index * self.cache.block_tokens
        job.num_computed_tokens = computed
        places[job] = self.cache.blocks(computed)
        if job.state is State.RUNNING:
            self._truncated.add(job)
            job.decoding = False

    def _fail(self, job: Job, index: int) -> None:
        """End *job*, which could not load its block at *index*."""
        loads = self._loads(job)
        if job.state is State.RUNNING:
            self.running.remove(job)
            self.cache.invalidate(job.block_table, index)
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


#: The prefix hit of a job that holds its blocks already.
HELD = PrefixHit(0)


@define(eq=False)
class ConnectorScheduler(ConnectorQueues):
    """Asks `connector` for what the prefix cache lacks, before a job is admitted.

    A job whose load is asynchronous holds its blocks and waits.  It is admitted by a schedule after the one whose
    output says that the load has ended.
    """

    _passed_over: bool = field(default=False, init=False)  # may a job that was passed over be let in by the next one?
    _noted: int = field(default=0, init=False)  # entries of the schedule being made that loads know of
    _begun: list[Load] = field(factory=list, init=False)
    _unknown: list[Job] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._foresees = self._foresees and not self.connector.follows_decodes

    @property
    def asked(self) -> WaitingQueue:
        return self.waiting.waiting

    @property
    def steady(self) -> bool:
        """Whether the next schedule is like the latest, unless a job comes or ends, or a transfer ends.

        A load that did not fit does not fit again: only what ends can free blocks.
        """
        latest, transfers = self.latest, self.transfers
        if latest.loads or latest.sends or transfers.deferred_frees or self._ended:
            return False
        if len(self.running) >= self.limits.active:
            return True
        return not self._passed_over and all(self._loads(job) for job in self.waiting.holding)

    # Schedules.

    def _begin(self) -> None:
        self._batch, self._passed_over, self._noted = self._newest, False, 0
        self._stops = self.limits.self_preemption_ends_turn
        super()._begin()

    def _conclude(self) -> Schedule:
        schedule = super()._conclude()
        self._note_progress(0)
        if self.transfers.unfinished:
            for entry in schedule.entries:
                if entry.samples:  # its prompt is finished, but loads of this very schedule still left it room
                    self.transfers.unfinished.pop(entry.job, None)
        for load in self._begun:
            if load.asynchronous:
                self.waiting.hold(load.job)
        for job in self._unknown:
            self.waiting.let_go(job)
        schedule.loads, schedule.sends, self._ended = self._begun, self._sends, False
        self._begun, self._sends, self._unknown = [], [], []
        grown = self.decodes.grown if schedule.decodes and self.decodes.grown_at == self.steps else ()
        self.connector.schedule_made(schedule, grown)
        return schedule

    def _preempt(self) -> Job | None:
        if self._defers_frees:
            if self.guard.chooses and self.decodes.length:
                self._dissolve_decodes()
            if self.decodes.awaits(self.guard.victim(self.running)):
                self._stops = True  # the jobs behind it get nothing, but others may be admitted
                return None
        victim = super()._preempt()
        assert victim is not None, "a running job was to be preempted"
        self.transfers.unfinished.pop(victim, None)
        if not self.connector.consumes and self.decodes.awaits(victim):
            self._dropped[victim] = victim.sent
            victim.sent, victim.num_output_placeholders = -1, 0
        return victim

    def _note_progress(self, first: int) -> None:
        """Note which jobs of the entries from the *first* on are in the middle of their prompt."""
        entries = self.latest.entries
        for index in range(first, len(entries)):
            if not entries[index].samples:
                self.transfers.unfinished[entries[index].job] = None
        self._noted = len(entries)

    # Admission.

    def _admit(self, job: Job, wish: int) -> bool:
        if self.latest.preempted or len(self.running) >= self.limits.active or self._budget <= 0:
            return False
        if job.state is State.LOADING and not self._promote(job):
            return True
        if self.decodes.awaits(job):
            return self._pass_over(job)
        if self.guard.demands and self.decodes.length:
            self._dissolve_decodes()
        if self.cache.held_blocks(job.block_table):  # though a prompt of one token has nothing computed
            cached, admitted = job.cached, self._start(job, HELD, job.num_computed_tokens, wish)
            job.cached = cached
            return admitted
        return self._ask_connector(job, wish)

    def _pass_over(self, job: Job) -> bool:
        job.passed_over = self._passed_over = True
        return True

    def _promote(self, job: Job) -> bool:
        """Let a loading *job* go on if its load has ended; vLLM's `_update_waiting_for_remote_kv`."""
        transfers = self.transfers
        if job not in transfers.received:
            return False
        transfers.received.remove(job)
        job.state, job.passed_over = State.WAITING, False
        if job.num_computed_tokens:
            self._publish(job, job.num_computed_tokens)
        else:  # all was spoilt, and what it needs again counts against itself
            self.cache.free(job.block_table)
            transfers.unfinished[job] = None
        if job.num_computed_tokens == job.num_tokens:  # the last one is computed again: the next is sampled from it
            job.num_computed_tokens -= 1
        return True

    def _ask_connector(self, job: Job, wish: int) -> bool:
        """Look up what *job* has in the cache, ask for the rest, and admit it or begin to load."""
        hit = self._find_prefix(job)
        tokens, asynchronous = self.connector.external_tokens(job, hit.tokens)
        if not job.reads_cache and not (tokens is None and self.connector.sends_early(job)):
            tokens = 0  # whatever the answer, it computes all, but not before who reads it early has room
        if tokens is None:
            self._unknown.append(job)
            return self._pass_over(job)
        load = Load(job, hit.tokens, tokens, asynchronous)
        if load.tokens and asynchronous:
            return self._load(load, hit)
        if not self._start(job, hit, hit.tokens + load.tokens, wish):
            return False
        job.cached = hit.tokens
        self._begin_load(load)
        return True

    def _load(self, load: Load, hit: PrefixHit) -> bool:
        """Begin an asynchronous *load* of a job that begins with *hit*, if there is room for it beside the others."""
        job, end, spare = load.job, load.start + load.tokens, self._spare if self.running else 0
        if self.limits.scheduler_reserve_full_isl and not self.cache.can_admit(hit, job.num_tokens, spare):
            return False
        self._note_progress(self._noted)
        extra = 1 + self.speculation.k + self._lookahead if self.speculation else 0
        if not self.cache.can_allocate(hit, end, spare + self.transfers.reserved(extra)):
            return False
        if self.guard.demands and not self.guard.admits(job, self.running, self.cache):
            return False
        Scheduler._attach(self, job, hit, end)  # a drafter needs no slots yet
        job.state, job.num_computed_tokens, job.cached, job.passed_over = State.LOADING, end, hit.tokens, True
        self.transfers.begin(job, extra)
        self._begin_load(load)
        return True

    def _begin_load(self, load: Load) -> None:
        self.connector.begin(load)
        if load.tokens:
            self._begun.append(load)

    def _fits(self, job: Job, hit: PrefixHit, tokens: int, spare: int, whole: bool = False) -> bool:
        if hit is not HELD:
            return super()._fits(job, hit, tokens, spare, whole)
        return self.cache.blocks(tokens) - self.cache.held_blocks(job.block_table) + spare <= self.cache.pool.free

    def _has_room(self, job: Job, hit: PrefixHit, tokens: int) -> bool:
        return super()._has_room(job, hit, self._kept(job, tokens))

    def _kept(self, job: Job, tokens: int) -> int:
        """For how many tokens *job* gets blocks with its admission, of which so many *tokens* are computed first."""
        return job.num_tokens if self.connector.sends_early(job) else tokens

    def _attach(self, job: Job, hit: PrefixHit, tokens: int) -> None:
        if hit is not HELD:
            super()._attach(job, hit, self._kept(job, tokens))
        else:
            grown = self.cache.allocate(job.block_table, self._slots(tokens))
            assert grown, "blocks that were free are gone"


def connecting(connector: Connector) -> Sequence[Rules]:
    """The rules of an engine with a KV *connector*."""
    return (Rules(1, ConnectorScheduler, {"connector": connector}),)
