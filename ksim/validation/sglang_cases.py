"""Recorded cases of SGLang's scheduler, and their replay by ksim's, turn by turn of the event loop."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field, frozen
from attrs.validators import ge, gt, in_, optional

from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError
from ksim.kv.cache import BlockTable
from ksim.kv.cache.radix import RadixCache
from ksim.kv.cache.window_radix import WindowRadixCache, WindowTable
from ksim.scheduling.draft_scheduler import DraftSchedule
from ksim.scheduling.engine_loop import EngineLoop
from ksim.scheduling.job import Job, Schedule, ScheduledTokens, State
from ksim.scheduling.policies.orders import Fcfs
from ksim.scheduling.sglang.drafts import SglangDraftScheduler, draft_slots
from ksim.scheduling.sglang.limits import INPUT_MARGIN, SglangLimits
from ksim.scheduling.sglang.scheduler import SglangScheduler
from ksim.scheduling.sglang.windows import SglangWindowDraftScheduler, SglangWindowScheduler
from ksim.validation import cases
from ksim.validation.cases import Abort

__all__ = ["SglangCase", "SglangCaseFile", "SglangReplay", "read_sglang"]

#: What a turn of the event loop did.
Row = dict[str, Any]
_STOP = 2  # the token that ends an output before the scheduler can see it coming
#: A request without a priority is the least urgent.
_LEAST_URGENT = 1 << 63


@frozen(kw_only=True)
class SglangCaseSettings(SglangLimits):
    """SGLang's settings of a case, with the defaults of the recordings, and the sizes of the pools."""

    max_running_requests: int = field(default=64, validator=gt(0))
    context_len: int = field(default=8192, validator=gt(1))
    context_length: int = field(init=False)
    chunked_prefill_size: int = field(default=2048, validator=ge(-1))
    max_total_num_tokens: int = field(default=4096, validator=gt(0))
    page_size: int = field(default=1, validator=gt(0))
    disable_radix_cache: bool = False
    radix_eviction_policy: str = "lru"
    sliding_window: int | None = field(default=None, validator=optional(gt(0)))
    swa_tokens: int | None = field(default=None, validator=optional(gt(0)))
    speculative: Mapping[str, int] | None = None
    disaggregation_mode: str = field(default="null", validator=in_(("null", "prefill", "decode")))
    disaggregation_decode_retraction_backup: str | None = None

    @context_length.default
    def _context_length(self) -> int:
        return self.context_len

    @property
    def shares_prefixes(self) -> bool:
        decodes = self.disaggregation_mode == "decode"
        return self.disaggregation_decode_enable_radix_cache if decodes else not self.disable_radix_cache


@frozen(kw_only=True)
class SglangCaseRequest:
    """A request of a case, as `ksim.validation.cases.CaseRequest`."""

    id: str
    arrival_step: int = field(validator=ge(0))
    prompt: Any
    output_len: int = field(validator=gt(0))
    max_tokens: int | None = field(default=None, validator=optional(ge(0)))
    ignore_eos: bool = False
    priority: int | None = None
    output_token: int = 7
    accepts: Sequence[int] | None = None
    bootstrap_steps: int = field(default=0, validator=ge(0))
    transfer_steps: int = field(default=0, validator=ge(0))

    @property
    def asked(self) -> int:
        """`max_new_tokens`."""
        return self.output_len if self.max_tokens is None else self.max_tokens

    @property
    def stops(self) -> bool:
        """Whether the stop token, which the scheduler cannot see coming, ends its output."""
        return self.asked > self.output_len and not self.ignore_eos


@frozen
class SglangCase:
    """The input of a scheduler: settings, requests and aborts."""

    name: str
    settings: SglangCaseSettings
    requests: Sequence[SglangCaseRequest]
    aborts: Sequence[Abort] = ()
    note: str = ""

    @property
    def kind(self) -> str:
        """The kind of the case: its name without the number."""
        return self.name.rpartition("_")[0]


@frozen
class SglangExpected:
    """The recorded behaviour of a scheduler: its turns, and the outcome of each request."""

    end: str = field(validator=in_(("done", "stalled")))
    steps: Any
    requests: Any


@frozen
class SglangCaseFile:
    """The content of a case file."""

    format: int = field(validator=in_((1,)))
    sglang: str
    case: SglangCase
    expected: SglangExpected


def read_sglang(table: Mapping[str, Any], path: Path) -> SglangCaseFile:
    """The case in *table*, the content of the file *path*; raises ConfigError, which names the key, if it is wrong."""
    recording = structure(SglangCaseFile, table, str(path))
    case, expected = recording.case, recording.expected
    if case.settings.max_total_num_tokens % case.settings.page_size:
        raise ConfigError(f"{path}: case.settings.max_total_num_tokens", "must be whole pages")
    for index, request in enumerate(case.requests):
        try:
            cases.length(request.prompt)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: case.requests[{index}]", str(error)) from None
    known = {request.id for request in case.requests}
    if unknown := [abort.id for abort in case.aborts if abort.id not in known]:
        raise ConfigError(f"{path}: case.aborts", f"no request has the id {unknown[0]!r}")
    if len(expected.requests) != len(case.requests):
        raise ConfigError(f"{path}: expected.requests", f"has {len(expected.requests)} entries for"
                                                        f" {len(case.requests)} requests")
    return recording


@frozen
class CaseAcceptance:
    """Accepts what the `requests` of a case say, of verifications that yield so many tokens at `most`."""

    requests: Sequence[SglangCaseRequest]
    most: int

    @property
    def k(self) -> int:
        return self.most - 1

    def accepted(self, job: Job, drafts: int) -> int:
        """How many of *drafts* drafted tokens are accepted, by which of its tokens the verification begins with."""
        accepts = self.requests[job.number].accepts or (self.most,)
        begins_with = job.sampled + job.num_output_placeholders + 1
        return min(self.most, accepts[begins_with % len(accepts)]) - 1


class NotingCache(RadixCache):
    """Notes its evictions: tokens asked for, and tokens freed, of each pool."""

    evictions: list[list[int]]

    def _evict_to(self, tokens: int) -> None:
        before = self.counts()[0]
        super()._evict_to(tokens)
        freed = [now - then for now, then in zip(self.counts()[0], before, strict=True)]
        if any(freed):
            self.evictions.append([*(max(0, tokens - free) for free in before), *freed])

    def counts(self) -> tuple[list[int], list[int]]:
        """The free tokens of each pool, and the evictable and protected tokens of the tree in it."""
        evictable = self.evictable_tokens()
        return [self.free_tokens()], [evictable, self.cached_tokens() - evictable]


class NotingWindowCache(NotingCache, WindowRadixCache):
    def counts(self) -> tuple[list[int], list[int]]:
        free, tree = super().counts()
        evictable = self.evictable_window_tokens()
        return [*free, self.free_window_tokens()], [*tree, evictable, self.cached_window_tokens() - evictable]


@define(eq=False)
class SglangReplay:
    """SGLang's event loop without a model, as the recordings were made; `steps` may be taken once."""

    case: SglangCase
    repeats: bool = True
    end: str = field(default="", init=False)
    outcomes: list[dict[str, Any]] = field(init=False)
    _cache: NotingCache = field(init=False)
    _scheduler: SglangScheduler = field(init=False)
    _loop: EngineLoop = field(init=False)
    _jobs: list[Job] = field(init=False)
    _places: dict[Job, int] = field(init=False)
    _arrivals: deque[tuple[int, int]] = field(init=False)
    _aborts: deque[Abort] = field(init=False)
    _names: dict[str, int] = field(init=False)  # places in the list
    _found: dict[Job, int] = field(factory=dict, init=False)  # tokens of its first admission that were cached

    def __attrs_post_init__(self) -> None:
        settings = self.case.settings
        self._cache = _cache(settings)
        self._scheduler = self._make_scheduler()
        self._loop = EngineLoop(self._scheduler)
        self._jobs = [self._job(place, request) for place, request in enumerate(self.case.requests)]
        self._places = {job: place for place, job in enumerate(self._jobs)}
        self._names = {request.id: place for place, request in enumerate(self.case.requests)}
        self._arrivals = deque(sorted((request.arrival_step, place)
                                      for place, request in enumerate(self.case.requests)))
        self._aborts = deque(sorted(self.case.aborts, key=lambda abort: abort.step))
        self.outcomes = [{"first": None, "tokens": 0, "retracted": 0, "cached": 0, "end": None, "why": None,
                          "max_new": None} for _ in self._jobs]

    def _make_scheduler(self) -> SglangScheduler:
        settings = self.case.settings
        plain, drafting = (SglangScheduler, SglangDraftScheduler) if settings.sliding_window is None else (
            SglangWindowScheduler, SglangWindowDraftScheduler)
        if settings.speculative is None:
            return plain(settings, Fcfs(), self._cache)
        return drafting(
            settings, Fcfs(), self._cache, slots=draft_slots(**settings.speculative, page=settings.page_size),
            speculation=CaseAcceptance(self.case.requests, settings.speculative["draft_tokens"]))

    def _job(self, place: int, request: SglangCaseRequest) -> Job:
        settings = self.case.settings
        pool, page = settings.max_total_num_tokens, settings.page_size
        prompt = cases.tokens(request.prompt)
        too_long = len(prompt) >= settings.longest(pool) - INPUT_MARGIN
        limit = settings.most_new(len(prompt), request.asked, pool, page)
        if too_long:
            prompt = np.zeros(1, np.uint64)
        dropped = settings.speculative["draft_tokens"] if settings.speculative else 0
        length = request.output_len if request.stops else max(request.asked, 1)
        output = np.full(length + dropped, request.output_token, np.uint64)
        if request.asked > request.output_len and not too_long:
            output[request.output_len - 1] = _STOP
        # By the token, whatever the page: orders tell prompts apart within one.
        content = cases.blocks(np.concatenate([prompt, output]), 1, self._cache.ahead)
        priority = settings.sign * _LEAST_URGENT if request.priority is None else request.priority
        asked = Request(place, 0.0, len(prompt), length + dropped, content, 1, priority, ignore_eos=request.ignore_eos)
        table = WindowTable if settings.sliding_window else BlockTable
        job = Job.of(asked, place, page, output=length, limit=limit, block_table=table(asked.chunks, 1, asked.named))
        if too_long:
            job.aborted = True
        return job

    def steps(self) -> Iterator[Row]:
        """Play the case to its end, a row a turn."""
        step, idle = 0, 0
        while True:
            row: Row = {"s": step}
            events = self._take_in(row, step)
            self._turn(row, step)
            busy = events or row["kind"] is not None or any(key in row for key in ("upd", "retr", "fin"))
            yield row
            idle = 0 if busy else idle + 1
            step += 1
            if idle >= 2:
                due = self._due(step)
                if not due:
                    self.end = "done" if all(outcome["end"] is not None for outcome in self.outcomes) else "stalled"
                    return
                step = max(step, min(due))

    def _due(self, step: int) -> list[int]:
        """The steps, from *step* on, at which something is due."""
        return [queue[0][0] if isinstance(queue[0], tuple) else queue[0].step
                for queue in (self._arrivals, self._aborts) if queue]

    def _take_in(self, row: Row, step: int) -> bool:
        """Take in the arrivals and aborts that are due."""
        added, aborted = [], []
        while self._arrivals and self._arrivals[0][0] <= step:
            place = self._arrivals.popleft()[1]
            added.append(place)
            self._scheduler.add(self._jobs[place])
            self.outcomes[place]["max_new"] = self._jobs[place].limit
        self._note_out(row, step)
        while self._aborts and self._aborts[0].step <= step:
            place = self._names[self._aborts.popleft().id]
            aborted.append(place)
            if place not in {index for _, index in self._arrivals} and self._jobs[place].state is not State.DONE:
                self._scheduler.abort(self._jobs[place])
        row |= ({"add": added} if added else {}) | ({"ab": aborted} if aborted else {})
        self._note_out(row, step)
        return bool(added or aborted)

    def _note_out(self, row: Row, step: int) -> None:
        for job in self._scheduler.rejected:
            place = self._places[job]
            row.setdefault("out", []).append(place)
            self._note_end(job, step, "abort")
        self._scheduler.rejected.clear()

    def _turn(self, row: Row, step: int) -> None:
        """Plan a batch, and take in a result."""
        schedule = self._schedule(step)
        self._loop.put(schedule, step)
        self._note_out(row, step)
        self._note_batch(row, schedule, step)
        row |= self._memory() | self._queues()
        if self._loop.full:
            self._take_result(row, step)
        self._end_turn(row, step)
        if self._cache.evictions:
            row["evict"] = [*self._cache.evictions]
            self._cache.evictions.clear()
        after = self._memory()
        if self._scheduler.idled:
            after["ratio"] = round(self._scheduler.ratio.start, 9)
        row |= {f"{key}2": value for key, value in after.items() if value != row[key]}

    def _note_batch(self, row: Row, schedule: Schedule, step: int) -> None:
        """Write down the batch of *schedule*, and whom it took memory from."""
        entries, scheduler = schedule.entries, self._scheduler
        riding = sum(not entry.prompt for entry in entries)
        decodes = schedule.decodes or isinstance(schedule, DraftSchedule)
        riding = 0 if decodes else riding
        row["kind"] = "decode" if decodes else "mixed" if riding else "extend" if entries else None
        retracted = {"retr": [self._places[job] for job in scheduler.retracted],
                     "pre": sorted(self._places[job] for job in scheduler.preempted)}
        optional = retracted | {
            "batch": [[self._places[entry.job], *_counts(entry)] for entry in schedule.all_entries()],
            "dec": riding}
        row |= {key: value for key, value in optional.items() if value}
        for place in (place for places in retracted.values() for place in places):
            self.outcomes[place]["retracted"] += 1
        for entry in entries:
            outcome = self.outcomes[self._places[entry.job]]
            if entry.admitted and outcome["first"] is None:
                outcome["first"] = step
            if entry.admitted and not entry.job.preemptions:
                self._found[entry.job] = entry.start

    def _queues(self) -> Row:
        scheduler = self._scheduler
        return {"wait": [self._places[job] for job in scheduler.waiting],
                "run": [self._places[job] for job in scheduler.batch.jobs],
                "chunk": None if scheduler.chunked is None else self._places[scheduler.chunked],
                "full": scheduler.batch.full}

    def _take_result(self, row: Row, step: int) -> None:
        """Take in the result of the oldest batch."""
        oldest = self._loop.in_flight[0]
        finished = self._loop.take_in_oldest()
        if not oldest.empty:
            row["upd"] = int(oldest.now)
        self._note_finished(finished, row, step)

    def _note_finished(self, finished: Sequence[Job], row: Row, step: int) -> None:
        for job in finished:
            self._note_end(job, step, "length")
            self.outcomes[self._places[job]]["cached"] = self._found.get(job, 0)
            row.setdefault("fin", []).append(self._places[job])

    def _end_turn(self, row: Row, step: int) -> None:
        """Do what the event loop does after it has taken a result."""

    def _schedule(self, step: int) -> Schedule:
        """Plan the next batch, or repeat the latest where that is known to be the next, as engines do that skip."""
        if self.repeats and self._scheduler.repeats_left() > 0 and self._scheduler.repeat():
            return self._scheduler.repeated()
        return self._scheduler.schedule(float(step))

    def _memory(self) -> Row:
        free, tree = self._cache.counts()
        return {"free": free, "tree": tree, "ratio": round(self._scheduler.ratio.now, 9)}

    def _note_end(self, job: Job, step: int, why: str) -> None:
        request = self.case.requests[self._places[job]]
        if why == "length":
            why = "abort" if job.aborted else (
                "stop" if request.stops and job.sampled == request.output_len <= job.limit else "length")
        computed = job.num_computed_tokens - job.request.prompt + 1 if self._cache.ahead else 0  # dropped ones, too
        self.outcomes[self._places[job]] |= {"end": step, "why": why, "tokens": max(job.sampled, computed)}


def _counts(entry: ScheduledTokens) -> tuple[int, int]:
    """The tokens before those of *entry* and its own; of a verification, the committed tokens and the slots."""
    job = entry.job
    if entry.drafts:
        return job.num_computed_tokens, job.block_table.num_slots
    return entry.start, entry.tokens


def _cache(settings: SglangCaseSettings) -> NotingCache:
    page, window = settings.page_size, settings.sliding_window
    plain = (settings.max_total_num_tokens // page, page, settings.shares_prefixes,
             catalog.find("kv.cache.evictions", settings.radix_eviction_policy), int(settings.speculative is not None))
    cache = NotingCache(*plain) if window is None else NotingWindowCache(
        *plain, window=window, window_capacity=(settings.swa_tokens or 0) // page)
    cache.evictions = []
    return cache
