"""An engine that offloads, without a clock: its copies take turns, and what its store says is written down."""

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from ksim.flow.request import BlockKeys
from ksim.foundation import catalog
from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.offload.connector import OffloadConnector
from ksim.kv.offload.store import ChunkStore, OfferCounts
from ksim.scheduling.connector import ConnectorOutput, Copy, Load
from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.scheduling.job import Job, Limits, Schedule
from ksim.scheduling.policies.orders import Fcfs
from ksim.testing.loop import ROOMY, Loop


@define(eq=False)
class Index:
    """What a listener of a store knows: chunks on their way, chunks that are ready, and none of those `used`."""

    coming: set[int] = field(factory=set)
    ready: set[int] = field(factory=set)
    used: list[int] = field(factory=list)

    def taken(self, keys: Sequence[int]) -> None:
        assert not {*keys} & (self.coming | self.ready)
        self.coming.update(keys)

    def stored(self, keys: Sequence[int]) -> None:
        assert {*keys} <= self.coming
        self.coming.difference_update(keys)
        self.ready.update(keys)

    def evicted(self, keys: Sequence[int]) -> None:
        assert {*keys} <= self.ready and not {*keys} & {*self.used}
        self.ready.difference_update(keys)


@define(eq=False)
class Watched(OffloadConnector):
    """Tells the index which chunks loads use, and keeps the loads."""

    loads: list[Load] = field(factory=list, init=False)

    def begin(self, load: Load) -> None:
        super().begin(load)
        if load.tokens:
            self.loads.append(load)
            listener: Any = self.store.listener
            listener.used += self._begun[-1].keys

    def take(self, numbers: Sequence[int]) -> None:
        listener: Any = self.store.listener
        for number in numbers:
            if self._copies[number].loads:
                for key in self._copies[number].keys:
                    listener.used.remove(key)
        super().take(numbers)


@define(eq=False)
class Workers:
    """Copies take so many `turns`, round and round."""

    turns: Sequence[int] = (1,)
    begun: list[Copy] = field(factory=list)
    hurried: list[int] = field(factory=list)
    _pending: dict[int, tuple[int, Copy]] = field(factory=dict)

    def work(self, schedule: Schedule, turn: int) -> ConnectorOutput:
        for copy in schedule.copies:
            self._pending[copy.number] = (turn + self.turns[copy.number % len(self.turns)], copy)
            self.begun.append(copy)
        self.hurried += schedule.hurried
        due = [copy for number, (end, copy) in self._pending.items() if end <= turn or number in schedule.hurried]
        for copy in due:
            del self._pending[copy.number]
        return ConnectorOutput([copy.job for copy in due if copy.loads], copied=[copy.number for copy in due])


def engine(*, chunks: int = 100, eviction: str = "lru", threshold: int = 0, turns: Sequence[int] = (1,),
           blocks: int = 100, block_tokens: int = 4, prefix_caching: bool = True, blocks_per_chunk: int = 1,
           prompt_only: bool = False, **limits: Any) -> Loop:
    """A loop with a store of so many *chunks*."""
    store = ChunkStore(chunks, catalog.find("kv.offload.evictions", eviction)(chunks),
                       OfferCounts(threshold) if threshold > 1 else None, Index())
    connector = Watched(store, BlockKeys(block_tokens), blocks_per_chunk, prompt_only, prefix_caching)
    cache = BlockCache(blocks, block_tokens, prefix_caching)
    workers: Any = Workers(turns)
    return Loop(ConnectorScheduler(Limits(**(ROOMY | limits)), Fcfs(), cache, connector=connector), connector=workers)


def settle(loop: Loop) -> None:
    """Take turns until nothing is left to do."""
    while loop.scheduler.has_requests:
        loop.turn()
        assert loop.turns < 10_000


def connector_of(loop: Loop) -> Watched:
    connector = loop.scheduler.connector
    assert isinstance(connector, Watched)
    return connector


def index_of(loop: Loop) -> Index:
    index = connector_of(loop).store.listener
    assert isinstance(index, Index)
    return index


def loaded(loop: Loop, job: Job) -> int:
    """How many tokens were loaded for *job*."""
    return sum(load.tokens for load in connector_of(loop).loads if load.job is job)
