"""The history of a scheduler as plain values, on which invariants are checked."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import define, evolve, field

from ksim.scheduling.connector import ConnectorOutput
from ksim.scheduling.job import Job, Schedule, State
from ksim.scheduling.sglang.jobs import SglangJobs
from ksim.scheduling.sglang.limits import SglangLimits
from ksim.scheduling.sglang.prefill_pass import CLIP
from ksim.testing.moment import Moment, RunningMoment, Share

__all__ = ["EngineHistory", "Moment", "HistoryRecorder", "Share", "emitted", "digest"]


@define(eq=False)
class EngineHistory:
    """All moments of one engine in order, its requests by number, and the numbers of those aborted or refused.

    `limits` are those of its scheduler: `Limits`, or `SglangLimits` of SGLang's.
    """

    limits: Any
    policy: Any
    capacity: int
    block_tokens: int
    prefix_caching: bool = True
    moments: list[Moment] = field(factory=list)
    jobs: list[Job] = field(factory=list)
    arrived: list[int] = field(factory=list)  # the number of schedules before it
    aborted: dict[int, int] = field(factory=dict)
    error: Exception | None = None  # the error that ended the run
    connector: Any = None
    speculates: bool = False  # does it verify drafted tokens?

    @property
    def schedules(self) -> list[Moment]:
        return [moment for moment in self.moments if moment.kind == "schedule"]

    @property
    def updates(self) -> list[Moment]:
        return [moment for moment in self.moments if moment.kind == "update"]

    @property
    def complete(self) -> bool:
        """Whether all requests ended without an error."""
        return self.error is None and not (self.moments and (self.moments[-1].running or self.moments[-1].waiting))

    @property
    def consumes(self) -> bool:
        """Whether the engine loads KV."""
        return self.connector is not None and bool(self.connector.consumes)

    @property
    def sends(self) -> set[int]:
        """The requests whose blocks are held after their end."""
        return set() if self.connector is None else {
            job.number for job in self.jobs if self.connector.holds(job, complete=True)}

    @property
    def slowest(self) -> int:
        """The most turns that a transfer takes, with all that a request waits for it."""
        some = () if self.connector is None else self.connector.transfers.values()
        return max((transfer.turns + transfer.unknown + transfer.sent + 1 for transfer in some), default=0)

    @property
    def interval(self) -> int:
        """Turns from one that may begin prompts to the next."""
        if isinstance(self.limits, SglangLimits):
            return 1 + (self.limits.prefill_decode_interval or 0)
        return int(self.limits.prefill_schedule_interval)

    @property
    def spare(self) -> int:
        """Blocks that the watermark keeps free."""
        return int(self.limits.watermark * (self.capacity + 1))

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def output(self, number: int) -> int:
        """The number of tokens that request *number* must get."""
        return min(self.jobs[number].output, self._room(number))

    def size(self, number: int) -> int:
        """The tokens of request *number*, prompt and output."""
        return self.jobs[number].request.prompt + self.output(number)

    def foreseen(self, number: int) -> int:
        """The number of output tokens after which the scheduler must expect the end."""
        return min(max(self.jobs[number].limit, self.jobs[number].output), self._room(number))

    def _room(self, number: int) -> int:
        """Most output tokens that a request may have after its prompt."""
        return int(self.limits.max_model_len) - self.jobs[number].request.prompt


@define(eq=False)
class HistoryRecorder:
    """A scheduler that records a history and leaves everything else to the one it wraps."""

    scheduler: Any
    history: EngineHistory = field(init=False)
    _in_flight: int = 0
    _shares: Counter[int] = field(factory=Counter)  # batches in flight, by request
    _steps: deque[int] = field(factory=deque)  # when the schedules in flight were made
    _gave_way: dict[int, int] = field(factory=dict)  # requests that lose what is in flight, and the step of that

    def __attrs_post_init__(self) -> None:
        scheduler = self.scheduler
        self.history = EngineHistory(scheduler.limits, scheduler.policy, scheduler.cache.capacity,
                                     scheduler.cache.block_tokens, scheduler.cache.prefix_caching,
                                     connector=getattr(scheduler, "connector", None),
                                     speculates=getattr(scheduler, "speculation", None) is not None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scheduler, name)

    def add(self, job: Job) -> None:
        self.history.jobs.append(job)
        self.history.arrived.append(self.scheduler.steps)
        self.scheduler.add(job)
        self._note_refused()

    def abort(self, job: Job) -> None:
        if job.state is not State.DONE:
            self.history.aborted[job.number] = self.scheduler.steps
        self.scheduler.abort(job)

    def schedule(self, now: float) -> Schedule:
        order = self._order()
        queue = tuple((order(job), job.number, job.num_tokens) for job in self.scheduler.waiting
                      if not self._shares[job.number])
        ran = _numbers(self._running)
        live = len(ran) + len(self.scheduler.waiting)
        schedule: Schedule = self.scheduler.schedule(now)
        self._note_refused()
        known = {entry.job.number: entry.job.num_tokens for entry in schedule.entries if entry.admitted}
        preempted = tuple(job.number for job in schedule.preempted)
        loads = tuple((load.job.number, load.start, load.start + load.tokens, load.asynchronous)
                      for load in schedule.loads)
        sglang = isinstance(self.scheduler, SglangJobs)
        self._note("schedule", now, -1, _shares(schedule), preempted, (), known=known, queue=queue, live=live,
                   ran=ran, loads=loads, batch=_batch(self.scheduler, schedule) if sglang else None)
        self._steps.append(self.scheduler.steps)
        if sglang:
            self._gave_way |= dict.fromkeys(preempted, self.scheduler.steps)
        self._in_flight += bool(schedule)
        self._shares.update(share.request for share in self.history.moments[-1].shares)
        return schedule

    def update(self, schedule: Schedule, index: int, output: ConnectorOutput | None = None) -> list[Job]:
        made, transfers = self._steps.popleft() if self._steps else 0, {}
        shares = tuple(evolve(share, lost=self._gave_way.get(share.request, made) > made)
                       for share in _shares(schedule))
        if output is None:
            finished: list[Job] = self.scheduler.update(schedule, index)
        else:
            finished = self.scheduler.update(schedule, index, output)
            transfers = {"received": _numbers(output.received), "failed": _numbers(output.failed),
                         "sent": _numbers(output.sent)}
        self._in_flight -= bool(schedule)
        self._shares.subtract(share.request for share in shares)
        self._note("update", float(index), index, shares, (), _numbers(finished), **transfers)
        return finished

    def _note_refused(self) -> None:
        """Count those whom SGLang refuses or drops as aborted: they end without a result."""
        for job in getattr(self.scheduler, "rejected", ()):
            self.history.aborted.setdefault(job.number, self.scheduler.steps)

    @property
    def _running(self) -> Sequence[Job]:
        """The jobs that hold memory."""
        running: Sequence[Job] = getattr(self.scheduler, "holding", self.scheduler.running)
        return running

    def _order(self) -> Callable[[Job], Any]:
        """By what the jobs wait: by the policy's key, or else as the engine lets them wait, as far as that is known."""
        policy, scheduler = self.scheduler.policy, self.scheduler
        if order := getattr(policy, "order", None):
            by_policy: Callable[[Job], Any] = order
            return by_policy
        if not isinstance(scheduler, SglangJobs):
            return _unknown_order if hasattr(policy, "queue") else _arrival_order
        limits, places = scheduler.limits, {job: place for place, job in enumerate(scheduler.waiting)}
        sign = limits.sign if limits.enable_priority_scheduling else 0
        if limits.schedule_policy != "fcfs":
            return _unknown_order
        return lambda job: (sign * job.request.priority, job.entered if sign else places[job])

    def _note(self, kind: str, now: float, index: int, shares: tuple[Share, ...], preempted: tuple[int, ...],
              finished: tuple[int, ...], **rest: Any) -> None:
        scheduler, pool = self.scheduler, self.scheduler.cache.pool
        if self.history.connector is not None or isinstance(scheduler, SglangJobs):
            rest["tokens"] = {job.number: job.num_tokens for job in scheduler.waiting}
        self.history.moments.append(Moment(
            kind=kind, step=scheduler.steps, now=now, index=index, shares=shares, preempted=preempted,
            finished=finished, running=_numbers(self._running),
            waiting=tuple(job.number for job in scheduler.waiting),
            states={job.number: job.state for job in self.history.jobs},
            block_tables={job.number: tuple(job.block_table.blocks)
                          for job in self.history.jobs if job.block_table.blocks},
            ref_counts=tuple(getattr(pool, "ref_counts", ())), free=pool.free, in_flight=self._in_flight, **rest))


def _numbers(jobs: Iterable[Job]) -> tuple[int, ...]:
    return tuple(job.number for job in jobs)


def _batch(scheduler: SglangJobs, schedule: Schedule) -> RunningMoment:
    batch, ratio = scheduler.batch, scheduler.ratio.now
    sampled = {job: batch.sampled(job) for job in batch.jobs}
    ran = sampled | {entry.job: entry.job.sampled for entry in schedule.entries if not entry.prompt}
    reserved = sum(min(job.limit - tokens, CLIP) * (1 if job.request.ignore_eos else ratio)
                   for job, tokens in ran.items())
    return RunningMoment(_numbers(batch.jobs), tuple(sampled.values()), batch.full, reserved,
                         None if scheduler.chunked is None else scheduler.chunked.number)


def _arrival_order(job: Job) -> int:
    """Preempted requests come before all others, which are in order of arrival."""
    return 0 if job.preemptions else job.number + 1


def _unknown_order(job: Job) -> int:
    """The same place for all: only the policy knows the order of its own queue."""
    return 0


def _shares(schedule: Schedule) -> tuple[Share, ...]:
    return tuple(Share.of(entry) for entry in schedule.all_entries())


def emitted(job: Job) -> list[int]:
    """The engine's steps that sampled the tokens of *job*."""
    return [step for run in job.emitted for step in range(run.first, run.last + 1, run.every or 1)
            for _ in range(run.tokens)]


def digest(history: EngineHistory) -> Sequence[Any]:
    """The values that must be equal when only names differ."""
    return [(m.kind, m.shares, m.preempted, sorted(m.finished), m.running, m.free) for m in history.moments]
