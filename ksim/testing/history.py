"""The history of a scheduler as plain values, on which invariants are checked."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, field

from ksim.scheduling.connector import ConnectorOutput
from ksim.scheduling.job import Job, Limits, Schedule, State
from ksim.testing.moment import Moment, Share

__all__ = ["EngineHistory", "Moment", "HistoryRecorder", "Share", "emitted", "digest"]


@define(eq=False)
class EngineHistory:
    """All moments of one engine in order, its requests by number, and the numbers of aborted requests."""

    limits: Limits
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
    def spare(self) -> int:
        """Blocks that the watermark keeps free."""
        return int(self.limits.watermark * (self.capacity + 1))

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def output(self, number: int) -> int:
        """The number of tokens that request *number* must get."""
        return min(self.jobs[number].output, self.limits.max_model_len - self.jobs[number].request.prompt)

    def size(self, number: int) -> int:
        """The tokens of request *number*, prompt and output."""
        return self.jobs[number].request.prompt + self.output(number)

    def foreseen(self, number: int) -> int:
        """The number of output tokens after which the scheduler must expect the end."""
        return min(max(self.jobs[number].limit, self.jobs[number].output),
                   self.limits.max_model_len - self.jobs[number].request.prompt)


@define(eq=False)
class HistoryRecorder:
    """A scheduler that records a history and leaves everything else to the one it wraps."""

    scheduler: Any
    history: EngineHistory = field(init=False)
    _in_flight: int = 0
    _shares: Counter[int] = field(factory=Counter)  # batches in flight, by request

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

    def abort(self, job: Job) -> None:
        if job.state is not State.DONE:
            self.history.aborted[job.number] = self.scheduler.steps
        self.scheduler.abort(job)

    def schedule(self, now: float) -> Schedule:
        policy = self.scheduler.policy
        order = getattr(policy, "order", _unknown_order if hasattr(policy, "queue") else _arrival_order)
        queue = tuple((order(job), job.number, job.num_tokens) for job in self.scheduler.waiting
                      if not self._shares[job.number])
        ran = tuple(job.number for job in self.scheduler.running)
        live = len(self.scheduler.running) + len(self.scheduler.waiting)
        schedule: Schedule = self.scheduler.schedule(now)
        known = {entry.job.number: entry.job.num_tokens for entry in schedule.entries if entry.admitted}
        preempted = tuple(job.number for job in schedule.preempted)
        loads = tuple((load.job.number, load.start, load.start + load.tokens, load.asynchronous)
                      for load in schedule.loads)
        self._note("schedule", now, -1, _shares(schedule), preempted, (), known=known, queue=queue, live=live,
                   ran=ran, loads=loads)
        self._in_flight += bool(schedule)
        self._shares.update(share.request for share in self.history.moments[-1].shares)
        return schedule

    def update(self, schedule: Schedule, index: int, output: ConnectorOutput | None = None) -> list[Job]:
        shares, transfers = _shares(schedule), {}
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

    def _note(self, kind: str, now: float, index: int, shares: tuple[Share, ...], preempted: tuple[int, ...],
              finished: tuple[int, ...], **rest: Any) -> None:
        scheduler, pool = self.scheduler, self.scheduler.cache.pool
        if self.history.connector is not None:
            rest["tokens"] = {job.number: job.num_tokens for job in scheduler.waiting}
        self.history.moments.append(Moment(
            kind=kind, step=scheduler.steps, now=now, index=index, shares=shares, preempted=preempted,
            finished=finished, running=tuple(job.number for job in scheduler.running),
            waiting=tuple(job.number for job in scheduler.waiting),
            states={job.number: job.state for job in self.history.jobs},
            block_tables={job.number: tuple(job.block_table.blocks)
                          for job in self.history.jobs if job.block_table.blocks},
            ref_counts=tuple(getattr(pool, "ref_counts", ())), free=pool.free, in_flight=self._in_flight, **rest))


def _numbers(jobs: Iterable[Job]) -> tuple[int, ...]:
    return tuple(job.number for job in jobs)


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
