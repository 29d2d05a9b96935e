"""A recorded case of vLLM's scheduler, with or without a KV connector, played again by ksim's scheduler."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from attrs import define, field

from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.kv.cache import Cache
from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.hybrid import HybridCache
from ksim.kv.cache.vllm import VllmCache
from ksim.scheduling.connector_scheduler import ConnectorScheduler, connecting
from ksim.scheduling.draft_scheduler import drafting
from ksim.scheduling.engine_loop import EngineLoop, ScheduleForecast
from ksim.scheduling.group_rules import grouping
from ksim.scheduling.job import Job, Schedule, State
from ksim.scheduling.scheduler import Rules, Scheduler, scheduler_of
from ksim.validation import cases
from ksim.validation.case_connector import (
    CaseConnector,
    CaseDrafter,
    CaseOffload,
    CaseWorkers,
    OffloadWorkers,
    Report,
    keys_ahead,
    output,
)
from ksim.validation.cases import Abort, CaseRequest, RecordedCase, Row, Settings

_STOP = 2  # the token that ends an output before the scheduler can see it coming


@define(eq=False)
class ScheduleReplay:
    """vLLM's engine-core loop without a model, as the recordings were made; `steps` may be taken once.

    Its rows have the keys of the recorded ones, and so has what `outcomes` says
    of each request once they are taken.  `end` is then "done", or "stalled"
    where nothing can happen any more.  Where it `repeats`, schedules that are known are not made anew.
    """

    case: RecordedCase
    repeats: bool = True
    end: str = field(default="", init=False)
    _scheduler: Scheduler = field(init=False)
    _forecast: ScheduleForecast = field(init=False)
    _loop: EngineLoop = field(init=False)
    _jobs: list[Job] = field(init=False)
    _places: dict[Job, int] = field(init=False)
    _outcomes: list[dict[str, Any]] = field(init=False)
    _arrivals: deque[tuple[int, int]] = field(init=False)  # steps, and places in the list
    _aborts: dict[str, deque[Abort]] = field(init=False)
    _added: dict[str, Job] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        case, settings = self.case, self.case.settings
        cache = _cache(settings)
        self._jobs = list(_jobs(case, cache))
        self._scheduler = _scheduler(settings, cache, dict(zip(self._jobs, case.requests, strict=True)))
        self._forecast, self._loop = ScheduleForecast(self._scheduler), EngineLoop(self._scheduler)
        self._places = {job: index for index, job in enumerate(self._jobs)}
        self._outcomes = [{"first": None, "hit": 0, "end": None, "why": None} for _ in self._jobs]
        self._arrivals = deque(sorted((request.arrival_step, index) for index, request in enumerate(case.requests)))
        self._aborts = {when: deque(sorted((abort for abort in case.aborts if abort.when == when),
                                           key=lambda abort: abort.step)) for when in ("before", "during")}

    @property
    def outcomes(self) -> list[Row]:
        """The outcome of each request."""
        return [outcome | {"tokens": job.sampled, "preempt": job.preemptions}
                for job, outcome in zip(self._jobs, self._outcomes, strict=True)]

    def steps(self) -> Iterator[Row]:
        """Play the case to its end, a row a step."""
        step: int | None = 0
        while step is not None:
            self._arrive(step)
            aborted = self._abort("before", step)
            if self._scheduler.running or self._scheduler.waiting:
                row, stirs = self._turn(step)
                step = step + 1 if stirs else self._next(step, aborts=True)
            else:
                row = {"s": step, "sched": [], **self._state(), "upd": None, **self._state("2")} if aborted else {}
                self._take_in_all(step)
                step = self._next(step)
            if aborted:
                row["ab"] = aborted
            if row:
                yield row

    def _next(self, step: int, *, aborts: bool = False) -> int | None:
        """The next step with an arrival or, where asked for, an abort; without one, the case is at its end."""
        due = [self._arrivals[0][0]] if self._arrivals else []
        if aborts:
            due += [queue[0].step for queue in self._aborts.values() if queue]
        if not due:
            self.end = "stalled" if aborts else "done"
            return None
        return max(step + aborts, min(due))

    def _turn(self, step: int) -> tuple[dict[str, Any], bool]:
        """Make a batch and take in the oldest, if enough are in flight; say whether anything can come of it."""
        schedule = self._schedule(step)
        self._loop.put(schedule, step)
        stirs = not self._loop.idle or bool(schedule.preempted)
        row = {"s": step, "sched": self._granted(schedule, step), **self._state(), "upd": None}
        row |= self._told(schedule)
        if self._loop.full:
            if aborted := self._abort("during", step):
                row["ab2"], stirs = aborted, True
            row["upd"] = self._loop.in_flight[0].now
            if finished := self._take_in_oldest(step):
                row["fin"] = finished
        return row | self._state("2"), stirs

    def _told(self, schedule: Schedule) -> dict[str, Any]:
        """The preempted jobs of *schedule*, and the drafts that it verifies."""
        optional = {"pre": [self._places[job] for job in schedule.preempted],
                    "spec": [[self._places[entry.job], entry.drafts, entry.accepted]
                             for entry in schedule.entries if entry.drafts]}
        return {key: value for key, value in optional.items() if value}

    def _schedule(self, step: int) -> Schedule:
        """Make the next schedule, or repeat the latest where that is known to be the next, as engines do that skip."""
        if self.repeats and self._forecast.repeats_left() > 0 and self._scheduler.repeat():
            return self._scheduler.repeated()
        return self._scheduler.schedule(float(step))

    def _granted(self, schedule: Schedule, step: int) -> list[list[int]]:
        rows = []
        for entry in schedule.all_entries():
            index = self._places[entry.job]
            outcome = self._outcomes[index]
            if outcome["first"] is None:
                outcome["first"] = step
            kind = (2 if entry.job.preemptions else 1) if entry.admitted else 0
            rows.append([index, kind, entry.tokens, entry.start])
        for job, tokens in self._hits(schedule):
            self._outcomes[self._places[job]]["hit"] += tokens
        return rows

    def _hits(self, schedule: Schedule) -> Iterator[tuple[Job, int]]:
        """Yield each admitted job with the tokens that it found in the prefix cache."""
        yield from ((entry.job, entry.start) for entry in schedule.entries if entry.admitted)

    def _state(self, suffix: str = "") -> dict[str, Any]:
        scheduler = self._scheduler
        return {f"free{suffix}": scheduler.cache.pool.free,
                f"q{suffix}": [len(scheduler.waiting), len(scheduler.running)]}

    def _arrive(self, step: int) -> None:
        while self._arrivals and self._arrivals[0][0] <= step:
            _, index = self._arrivals.popleft()
            self._scheduler.add(self._jobs[index])
            self._added[self.case.requests[index].id] = self._jobs[index]

    def _abort(self, when: str, step: int) -> list[int]:
        """Carry out the aborts that are due; return whom they met."""
        met, queue = [], self._aborts[when]
        while queue and queue[0].step <= step:
            job = self._added.get(queue.popleft().id)
            if job is not None and job.state is not State.DONE:
                self._scheduler.abort(job)
                self._note_end(job, step, "abort")
                met.append(self._places[job])
        return met

    def _take_in_oldest(self, step: int) -> list[int]:
        """Take in the oldest batch; return who is done."""
        finished = self._loop.take_in_oldest()
        for job in finished:
            request = self.case.requests[self._places[job]]
            stopped = request.limit > request.output_len == job.sampled
            self._note_end(job, step, "error" if job.failed else "stop" if stopped else "length")
        failed = sorted(self._places[job] for job in finished if job.failed)
        return [self._places[job] for job in finished if not job.failed] + failed

    def _take_in_all(self, step: int) -> None:
        while self._loop.in_flight:
            self._take_in_oldest(step)

    def _note_end(self, job: Job, step: int, why: str) -> None:
        self._outcomes[self._places[job]] |= {"end": step, "why": why}


def _scheduler(settings: Settings, cache: Cache, requests: dict[Job, CaseRequest]) -> Scheduler:
    policy, rules = catalog.find("scheduling.policies", settings.policy)(), list[Rules]()
    if settings.connector is not None:
        rules += connecting(CaseOffload.of(settings.connector, settings.block_size, settings.enable_prefix_caching)
                            if settings.connector.offloads else CaseConnector(settings.connector, requests))
    if settings.speculative is not None:
        rules += drafting(CaseDrafter(settings.speculative, requests, settings.connector is not None))
    return scheduler_of((settings, policy, cache), [*rules, *(grouping() if isinstance(cache, HybridCache) else ())])


def _cache(settings: Settings) -> VllmCache | BlockCache | HybridCache:
    capacity, caching = settings.num_gpu_blocks - 1, settings.enable_prefix_caching
    if settings.connector is not None and settings.connector.offloads:
        return BlockCache(capacity, settings.block_size, caching)
    if not settings.kv_groups:
        return VllmCache(capacity, settings.block_size, caching)
    drafts = settings.speculative
    lookahead = drafts.k if drafts is not None and drafts.method != "ngram" else 0
    groups = [group.group(settings.block_size, lookahead) for group in settings.kv_groups]
    return HybridCache(capacity, groups, caching, settings.depth * settings.max_num_batched_tokens,
                       settings.max_model_len, dense=settings.retention_interval is None)


def _jobs(case: RecordedCase, cache: Cache) -> Iterator[Job]:
    """The jobs of *case*, in the order of its list."""
    numbers = {name: number for number, name in enumerate(sorted(request.id for request in case.requests))}
    earliest = min((request.arrival_time or 0.0 for request in case.requests), default=0.0)
    for index, request in enumerate(case.requests):
        arrival = float(index) if request.arrival_time is None else request.arrival_time
        yield _job(request, arrival - min(earliest, 0.0), numbers[request.id], case.settings, cache)


def _job(request: CaseRequest, arrival: float, number: int, settings: Settings, cache: Cache) -> Job:
    prompt = cases.tokens(request.prompt)
    output = np.full(min(request.output_len, settings.max_model_len), request.output_token, np.uint64)
    if request.limit > request.output_len == len(output):
        output[-1] = _STOP
    ahead = settings.speculative is not None and settings.connector is None and keys_ahead(settings.speculative)
    size = cache.unit if isinstance(cache, HybridCache) else settings.block_size
    content = cases.blocks(np.concatenate([prompt, output]), size, int(ahead))
    asked = Request(number, arrival, len(prompt), request.output_len, content, size, request.priority)
    job = Job.of(asked, number, settings.block_size, limit=request.limit, block_table=cache.block_table(asked))
    job.reads_cache = not request.skip_cache
    return job


@define(eq=False)
class TransferReplay(ScheduleReplay):
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
        optional = {"ext": [[self._places[load.job], load.start, load.tokens, int(load.asynchronous)]
                            for load in schedule.loads],
                    "unk": [self._places[job] for job in connector.unknown]}
        connector.begun.clear()
        connector.unknown.clear()
        self._reports[step] = self._workers.see(schedule, step)
        return row | self._told(schedule) | {key: value for key, value in optional.items() if value}

    def _updated(self, step: int) -> dict[str, Any]:
        """Carry out aborts, and take in the oldest batch with what the workers report; return that part of the row."""
        aborted = self._abort("during", step)
        self._note_freed(step)
        oldest = self._loop.in_flight[0]
        reports = self._reports.pop(int(oldest.now))
        oldest.output = output(reports)
        finished = self._take_in_oldest(step)
        self._note_freed(step)
        optional = {"ab2": aborted, "fin": finished,
                    "don": [report.copy for report in reports if report.copy >= 0],
                    "rcv": [self._places[report.job] for report in reports if report.received],
                    "snt": [self._places[report.job] for report in reports if report.sent],
                    "bad": [[self._places[report.job], len(report.bad)] for report in reports if report.bad]}
        return {"upd": int(oldest.now)} | {key: value for key, value in optional.items() if value}

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
        optional = {"rk": loading, "hold": held, "late": late}
        more = {f"{key}{suffix}": value for key, value in optional.items() if value}
        return ScheduleReplay._state(self, suffix) | more

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
        optional = self._offload.told(schedule, self._places)
        return super()._told(schedule) | {key: value for key, value in optional.items() if value}

    def _state(self, suffix: str = "") -> dict[str, Any]:
        state = self._offload.state()
        return super()._state(suffix) | {f"{key}{suffix}": value for key, value in state.items()}
