"""The KV connector and the drafter of a case, and what its workers report, as the recordings were made.

The offloading connector of a case, what it is seen to do, and the copies that its workers make.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import define, evolve, field, frozen

from ksim.flow.request import BlockKeys
from ksim.foundation import catalog
from ksim.kv.offload.connector import OffloadConnector
from ksim.kv.offload.store import ChunkStore, OfferCounts
from ksim.scheduling.connector import ConnectorOutput, Load, NoCopies
from ksim.scheduling.job import Job, Schedule
from ksim.validation.cases import KEPT, CaseRequest, ConnectorSettings, External, SpeculativeSettings


@define(eq=False)
class CaseConnector(NoCopies):
    """Answers what the `requests` of a case say; `begun` and `unknown` list the answers of the schedule being made."""

    settings: ConnectorSettings
    requests: dict[Job, CaseRequest]
    begun: list[Load] = field(factory=list)
    unknown: list[Job] = field(factory=list)
    _loaded: set[Job] = field(factory=set)
    _asked: Counter[Job] = field(factory=Counter)

    @property
    def consumes(self) -> bool:
        return self.settings.role != "kv_producer"

    @property
    def recomputes(self) -> bool:
        return self.settings.on_load_failure == "recompute"

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        request = self.requests[job]
        if request.remote is not None and job not in self._loaded:  # NIXL has it once
            return max(job.request.prompt - computed, 0), True
        return (0, False) if request.external is None else self._stored(request.external, job, computed)

    def _stored(self, store: External, job: Job, computed: int) -> tuple[int | None, bool]:
        self._asked[job] += 1
        if self._asked[job] <= store.unknown:
            self.unknown.append(job)
            return None, False
        asynchronous = store.load == "async"
        most = job.request.prompt - (not asynchronous)
        return max(min(store.tokens, most) - computed, 0), asynchronous

    def begin(self, load: Load) -> None:
        self._loaded.add(load.job)
        self.begun.append(load)

    def sends_early(self, job: Job) -> bool:
        return False

    def holds(self, job: Job, complete: bool) -> bool:
        return complete and self.requests[job].send is not KEPT


@frozen
class Report:
    """What is due at step `due`: a load that ends, a send that ends (`sent`), or `bad` blocks, at their places.

    It may be the end of a `copy` with a number.
    """

    due: int
    job: Job
    bad: Sequence[int] = ()
    received: bool = False
    sent: bool = False
    copy: int = -1


@define(eq=False)
class CaseWorkers:
    """Plays the workers: what they see with a batch they report in time, in the order in which it began."""

    connector: CaseConnector
    block_tokens: int
    pending: list[Report] = field(factory=list)
    _failed: set[Job] = field(factory=set)

    def see(self, schedule: Schedule, step: int) -> list[Report]:
        """Take note of what begins with the *schedule* of a *step*; return what is reported with its output."""
        for load in schedule.loads:
            self.pending += self._reports(load, step)
        for job in schedule.sends:
            steps = self.connector.requests[job].send
            lease = self.connector.settings.lease_steps
            self.pending.append(Report(step + (lease if steps is None else steps), job, sent=True))
        due = [report for report in self.pending if report.due <= step]
        self.pending = [report for report in self.pending if report.due > step]
        return due

    def _reports(self, load: Load, step: int) -> Iterator[Report]:
        request, bad = self.connector.requests[load.job], self._bad(load)
        if not load.asynchronous:
            if bad:
                yield Report(step, load.job, bad)
            return
        source = request.remote or request.external
        assert source is not None, "what is loaded comes from somewhere"
        at = getattr(source, "bad_at", None)
        if bad and at is not None:
            yield Report(step + at, load.job, bad)
            bad = ()
        yield Report(step + source.recv, load.job, bad, received=True)

    def _bad(self, load: Load) -> Sequence[int]:
        """The places of the job's blocks that *load* fails to fill: only a request's first load fails."""
        request = self.connector.requests[load.job]
        bad = getattr(request.remote or request.external, "bad", None)
        if bad is None or load.job in self._failed:
            return ()
        self._failed.add(load.job)
        first, end = load.start // self.block_tokens, -(-(load.start + load.tokens) // self.block_tokens)
        return range(first, end) if bad == "all" else [first + place for place in bad if first + place < end]


def output(reports: Sequence[Report]) -> ConnectorOutput:
    """The output of a connector that *reports* make."""
    return ConnectorOutput([report.job for report in reports if report.received],
                           [report.job for report in reports if report.sent],
                           {report.job: report.bad for report in reports if report.bad},
                           [report.copy for report in reports if report.copy >= 0])


@define(eq=False)
class CaseDrafter:
    """Accepts and proposes as many drafts as the `requests` of a case say, round and round."""

    settings: SpeculativeSettings
    requests: dict[Job, CaseRequest]
    connected: bool = False
    _verified: Counter[Job] = field(factory=Counter)
    _drafted: Counter[Job] = field(factory=Counter)

    @property
    def k(self) -> int:
        return self.settings.k

    @property
    def lookahead(self) -> int:
        return 0 if self.settings.method == "ngram" else self.settings.k

    @property
    def drops_block(self) -> bool:
        return self.settings.method == "eagle" and self.settings.block_drop and not self.keys_ahead

    @property
    def keys_ahead(self) -> bool:
        return keys_ahead(self.settings) and not self.connected

    @property
    def input_slots(self) -> int:
        return int(self.settings.method == "draft_model")

    def accepted(self, job: Job, drafts: int) -> int:
        return min(_next(self.requests[job].accept, job, self._verified, self.k), drafts)

    def proposed(self, job: Job) -> int:
        return min(_next(self.requests[job].drafts, job, self._drafted, self.k), self.k)


def keys_ahead(settings: SpeculativeSettings) -> bool:
    """Whether keys of blocks cover the next token, unless there is a KV connector."""
    return settings.method == "eagle" and settings.block_drop and settings.lookahead_hashes


def _next(plan: Sequence[int] | None, job: Job, used: Counter[Job], default: int) -> int:
    if not plan:
        return default
    used[job] += 1
    return plan[(used[job] - 1) % len(plan)]


@define(eq=False)
class Serials:
    """Numbers the chunks that a store takes in, and lists those `gone` since the list was cleared."""

    gone: list[int] = field(factory=list)
    _numbers: dict[int, int] = field(factory=dict)
    _taken: int = 0

    def taken(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._numbers[key] = self._taken
            self._taken += 1

    def stored(self, keys: Sequence[int]) -> None:
        """Do nothing: they were numbered when they were taken in."""

    def evicted(self, keys: Sequence[int]) -> None:
        self.gone += [self._numbers[key] for key in keys]


@define(eq=False)
class CaseOffload(OffloadConnector):
    """Lists what the latest schedule has asked, and the loads that it has begun; one that repeats it asks the same."""

    asked: list[tuple[Job, int, int | None]] = field(factory=list, init=False)
    begun: list[Load] = field(factory=list, init=False)
    unknown: list[Job] = field(factory=list, init=False)
    _told: bool = field(default=True, init=False)  # the next question belongs to a new schedule

    @classmethod
    def of(cls, settings: ConnectorSettings, block_size: int, prefix_caching: bool) -> "CaseOffload":
        """The connector that a case asks for."""
        eviction = catalog.find("kv.offload.evictions", settings.policy)(settings.cpu_chunks)
        counts = OfferCounts(settings.store_threshold) if settings.store_threshold > 1 else None
        store = ChunkStore(settings.cpu_chunks, eviction, counts, Serials())
        return cls(store, BlockKeys(block_size), settings.blocks_per_chunk, settings.offload_prompt_only,
                   prefix_caching)

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        tokens, asynchronous = super().external_tokens(job, computed)
        self._begin_list()
        self.asked.append((job, computed, tokens))
        return tokens, asynchronous

    def begin(self, load: Load) -> None:
        super().begin(load)
        self.begun.append(load)

    def schedule_made(self, schedule: Schedule, grown: Sequence[Job]) -> None:
        super().schedule_made(schedule, grown)
        self._begin_list()

    def _begin_list(self) -> None:
        if self._told:
            self.asked, self._told = [], False

    def told(self, schedule: Schedule, places: dict[Job, int]) -> dict[str, Any]:
        """The part of a row that says what the connector did for *schedule*; jobs have *places* in the case."""
        serials: Any = self.store.listener
        told = {
            "ask": [[places[job], computed, tokens] for job, computed, tokens in self.asked],
            "ld": [copy.number for copy in schedule.copies if copy.loads],
            "st": [[copy.number, places[copy.job], list(copy.chunks)] for copy in schedule.copies if not copy.loads],
            "ref": [[places[job], chunks] for job, chunks in self.refused],
            "evi": serials.gone, "fl": list(schedule.hurried)}
        self._told, serials.gone = True, []
        return told

    def state(self) -> dict[str, Any]:
        """The numbers of blocks in the store, and in the lists of ARC."""
        store, eviction = self.store, vars_of(self.store.eviction)
        state: dict[str, Any] = {"cpu": [len(store) - store.storing, store.storing]}
        if "target" in eviction:
            state["arc"] = [*(len(eviction[name]) for name in ("t1", "t2", "b1", "b2")), round(eviction["target"], 6)]
        return state


def vars_of(eviction: Any) -> dict[str, Any]:
    """The lists and the target of ARC, by name; nothing for others."""
    return {name: getattr(eviction, name) for name in ("t1", "t2", "b1", "b2", "target") if hasattr(eviction, name)}


@define(eq=False)
class OffloadWorkers:
    """Plays the workers: the copies of each direction take as many steps as `settings` say, round and round."""

    settings: ConnectorSettings
    pending: list[Report] = field(factory=list)
    _loads: int = 0
    _stores: int = 0

    def see(self, schedule: Schedule, step: int) -> list[Report]:
        """Take note of the copies that begin with the *schedule* of a *step*, and return what is reported with its
        output."""
        for copy in schedule.copies:
            if copy.loads:
                steps = self.settings.load_steps[self._loads % len(self.settings.load_steps)]
                self._loads += 1
            else:
                steps = max(1, self.settings.store_steps[self._stores % len(self.settings.store_steps)])
                self._stores += 1
            self.pending.append(Report(step + steps, copy.job, received=copy.loads, copy=copy.number))
        if schedule.hurried:
            self.pending = [evolve(report, due=step) if report.copy in schedule.hurried else report
                            for report in self.pending]
        due = [report for report in self.pending if report.due <= step]
        self.pending = [report for report in self.pending if report.due > step]
        return due
