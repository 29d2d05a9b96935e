"""The offloading connector of a case, what it is seen to do, and the copies that its workers make."""

from collections.abc import Sequence
from typing import Any

from attrs import define, evolve, field

from ksim.flow.block_keys import BlockKeys
from ksim.foundation import catalog
from ksim.kv_offload.connector import OffloadConnector
from ksim.kv_offload.store import ChunkStore, OfferCounts
from ksim.scheduling.connector import Load
from ksim.scheduling.job import Job
from ksim.scheduling.schedule import Schedule
from ksim.validation.case_connector import Report
from ksim.validation.transfer_cases import ConnectorSettings


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
        eviction = catalog.find("kv_offload.evictions", settings.policy)(settings.cpu_chunks)
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
        """How much is in the store, and in the lists of ARC."""
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
