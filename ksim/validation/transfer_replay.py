"""A case with a KV connector, played again by our scheduler."""

from collections.abc import Iterator
from typing import Any

from attrs import define, field

from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.scheduling.job import Job, State
from ksim.scheduling.schedule import Schedule
from ksim.validation.case_connector import CaseWorkers, Report, output
from ksim.validation.case_offload import CaseOffload, OffloadWorkers
from ksim.validation.cases import Row
from ksim.validation.replay import Replay


@define(eq=False)
class TransferReplay(Replay):
    """The engine-core loop goes on while blocks are held, takes no jumps, and leaves out turns in which nothing
    happens.

    Nothing that ksim knows: a recording has the turns `written` in which only vLLM's table of hashes changed.
    """

    written: frozenset[int] = frozenset()
    _workers: CaseWorkers | OffloadWorkers = field(init=False)
    _reports: dict[int, list[Report]] = field(factory=dict, init=False)  # by the step of the batch
    _last: dict[str, Any] = field(factory=dict, init=False)
    _quiet: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._workers = self._new_workers()
        for outcome in self._outcomes:
            outcome["ext"] = 0

    def _new_workers(self) -> CaseWorkers | OffloadWorkers:
        scheduler = self._connected
        return CaseWorkers(scheduler.connector, scheduler.cache.block_tokens)  # type: ignore[arg-type]

    @property
    def _connected(self) -> ConnectorScheduler:
        assert isinstance(self._scheduler, ConnectorScheduler)
        return self._scheduler

    def steps(self) -> Iterator[Row]:
        step: int | None = 0
        while step is not None:
            self._arrive(step)
            aborted = self._abort("before", step)
            self._note_freed(step)
            row: dict[str, Any] = {"s": step, "sched": None} | ({"ab": aborted} if aborted else {})
            if not self._scheduler.has_requests and not self._loop.in_flight:
                if aborted and self._is_new(row := row | self._state() | {"upd": None} | self._state("2")):
                    yield row
                step = self._next(step)
                continue
            row, stirs = self._take_turn(row, step)
            if self._is_new(row):
                stirs = True
                yield row
            step = self._after(step, stirs)

    def _take_turn(self, row: dict[str, Any], step: int) -> tuple[dict[str, Any], bool]:
        """Make a batch, if the scheduler has requests, and take in the oldest if it is due; say whether any had
        tokens."""
        loop, scheduler, made, due = self._loop, self._scheduler, False, True
        if scheduler.has_requests:
            schedule = self._schedule(step)
            loop.put(schedule, step)
            made = bool(schedule)
            row |= self._made(schedule, step)
            due = loop.full or not (made or scheduler.has_requests)
        row |= self._state() | {"upd": None}
        worked = False
        if due:
            worked = not loop.in_flight[0].empty
            row |= self._updated(step)
        row |= self._state("2")
        return row, made or worked or not loop.idle

    def _made(self, schedule: Schedule, step: int) -> dict[str, Any]:
        """The part of a row that says what *schedule* does."""
        connector: Any = self._connected.connector
        row: dict[str, Any] = {"sched": self._granted(schedule, step)}
        for load in connector.begun:
            outcome = self._outcomes[self._places[load.job]]
            outcome["hit"] += load.start
            outcome["ext"] += load.tokens
        told = {"ext": [[self._places[load.job], load.start, load.tokens, int(load.asynchronous)]
                        for load in schedule.loads],
                "unk": [self._places[job] for job in connector.unknown]}
        connector.begun.clear()
        connector.unknown.clear()
        self._reports[step] = self._workers.see(schedule, step)
        return row | self._told(schedule) | {key: value for key, value in told.items() if value}

    def _updated(self, step: int) -> dict[str, Any]:
        """Carry out aborts, and take in the oldest batch with what the workers report; return that part of the row."""
        aborted = self._abort("during", step)
        self._note_freed(step)
        oldest = self._loop.in_flight[0]
        reports = self._reports.pop(int(oldest.now))
        oldest.output = output(reports)
        finished = self._take_in_oldest(step)
        self._note_freed(step)
        told = {"ab2": aborted, "fin": finished,
                "don": [report.copy for report in reports if report.copy >= 0],
                "rcv": [self._places[report.job] for report in reports if report.received],
                "snt": [self._places[report.job] for report in reports if report.sent],
                "bad": [[self._places[report.job], len(report.bad)] for report in reports if report.bad]}
        return {"upd": int(oldest.now)} | {key: value for key, value in told.items() if value}

    def _after(self, step: int, stirs: bool) -> int | None:
        """The step after *step*; None if nothing has happened for long, and nothing is to come."""
        self._quiet = 0 if stirs else self._quiet + 1
        due = self._workers.pending or any(self._reports.values()) or self._arrivals or any(self._aborts.values())
        if self._quiet > 2 * self.case.settings.depth + 2 and not due:
            self.end = "stalled"
            return None
        return step + 1

    def _hits(self, schedule: Schedule) -> Iterator[tuple[Job, int]]:
        """Nothing: hits are counted when the connector is told of them."""
        yield from ()

    def _state(self, suffix: str = "") -> dict[str, Any]:
        transfers = self._connected.transfers
        loading = [self._places[job] for job in self._connected.waiting.holding if job.state is State.LOADING]
        held = sorted(self._places[job] for job in transfers.held)
        late = sum(transfers.cache.held_blocks(job.block_table) for _, job in transfers.deferred_frees)
        told = {"rk": loading, "hold": held, "late": late}
        return Replay._state(self, suffix) | {f"{key}{suffix}": value for key, value in told.items() if value}

    def _is_new(self, row: Row) -> bool:
        """Whether anything happened in a turn."""
        now = {key: value for key, value in row.items() if key not in ("s", "sched", "upd") and key[-1] != "2"}
        then = {key[:-1]: value for key, value in row.items() if key[-1] == "2" and key != "ab2"}
        if not row["sched"] and "ab2" not in row and now == then == self._last and row["s"] not in self.written:
            return False
        self._last = then
        return True

    def _note_freed(self, step: int) -> None:
        for job, outcome in zip(self._jobs, self._outcomes, strict=True):
            if outcome["end"] is not None and "freed" not in outcome and job not in self._connected.transfers.held:
                outcome["freed"] = step


@define(eq=False)
class OffloadReplay(TransferReplay):
    """A case whose connector offloads to a store."""

    def _new_workers(self) -> OffloadWorkers:
        assert self.case.settings.connector is not None
        return OffloadWorkers(self.case.settings.connector)

    @property
    def _offload(self) -> CaseOffload:
        connector = self._connected.connector
        assert isinstance(connector, CaseOffload)
        return connector

    def _told(self, schedule: Schedule) -> dict[str, Any]:
        told = self._offload.told(schedule, self._places)
        return super()._told(schedule) | {key: value for key, value in told.items() if value}

    def _state(self, suffix: str = "") -> dict[str, Any]:
        state = self._offload.state()
        return super()._state(suffix) | {f"{key}{suffix}": value for key, value in state.items()}
