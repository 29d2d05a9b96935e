"""vLLM's OffloadingConnector, scheduler side: which chunks of a request its store has, and which are stored.

`JoinedConnector` is several connectors of one engine, vLLM's MultiConnector (0.33, kv_connector/v1/multi_connector.py).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar

import simpy
from attrs import define, evolve, field

from ksim.flow.events import KvTransferParams
from ksim.flow.request import BlockKeys, Request
from ksim.kv.offload.evictions import RequestAccess
from ksim.kv.offload.store import ChunkStore
from ksim.kv.offload.worker import CopiesUnderWay, OffloadWorker, job_blocks
from ksim.kv.transfer.endpoint import Endpoint
from ksim.kv.transfer.transfer import KvTransfer
from ksim.scheduling.connector import Connector, ConnectorOutput, Contents
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Copy, Job, Load, Schedule
from ksim.scheduling.policies import ALL

__all__ = ["OffloadConnector", "JoinedConnector", "JoinedWorker"]


@define(eq=False)
class OffloadedJob:
    """vLLM's `RequestOffloadState`.

    `keys` name its chunks, also those whose tokens are not known yet.  The chunks before the `mark` were offered to the
    store.  `blocks` are the GPU blocks that it was scheduled with; `copies` have not ended.  Once it has ended, the
    first `final` tokens may be stored.  `refused` has the store's changes, the mark and the end of its latest offer, if
    there was no room for it.
    """

    job: Job
    keys: Sequence[int]
    mark: int = 0
    blocks: list[int] = field(factory=list)
    copies: set[int] = field(factory=set)
    access: RequestAccess = field(factory=RequestAccess)
    final: int = -1
    closed: bool = False
    refused: tuple[int, int, int] | None = None


@define(eq=False)
class OffloadConnector:
    """Offers each chunk of a request to `store` as soon as it is computed, and loads what the GPU's cache lacks.

    A chunk is `blocks_per_chunk` blocks, and the engine's cache must be a `BlockCache`, whose tables list blocks.  With
    `prompt_only`, no output is stored (vLLM's `offload_prompt_only`).  With `prefix_caching` on the GPU, a request
    waits for chunks that another one is loading.  `refused` lists the offers of the latest schedule that found no room.
    """

    store: ChunkStore
    keys: BlockKeys
    blocks_per_chunk: int = 1
    prompt_only: bool = False
    prefix_caching: bool = True
    refused: list[tuple[Job, int]] = field(factory=list, init=False)
    _chunk_tokens: int = field(init=False)
    _jobs: dict[Job, OffloadedJob] = field(factory=dict, init=False)
    _copies: CopiesUnderWay = field(factory=CopiesUnderWay, init=False)
    _begun: list[Copy] = field(factory=list, init=False)  # loads of the schedule being made
    _ended: list[OffloadedJob] = field(factory=list, init=False)  # since the latest schedule
    _loading: set[int] = field(factory=set, init=False)  # chunks that others had better wait for

    consumes: ClassVar[bool] = True
    recomputes: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        self._chunk_tokens = self.keys.block_tokens * self.blocks_per_chunk

    @property
    def copying(self) -> bool:
        return bool(self._copies)

    @property
    def follows_decodes(self) -> bool:
        """Without a prefix cache on the GPU, no calendar has the steps at which decodes fill blocks."""
        return not self.prefix_caching

    # What the scheduler asks.

    def came(self, job: Job) -> None:
        """Do nothing: nothing is copied ahead."""

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        record = self._of(job)
        record.blocks.clear()
        record.mark = 0
        if record.copies:
            return None, True
        return (self._found(record, computed), True) if job.reads_cache else (0, False)

    def _found(self, record: OffloadedJob, computed: int) -> int | None:
        """How many tokens beyond the *computed* ones the store has; None while some of them are on their way."""
        chunk, first = self._chunk_tokens, computed // self._chunk_tokens
        whole = record.job.num_tokens // chunk
        if whole * chunk - computed < chunk:
            return 0
        wanted = record.keys[first: whole]
        hits, ready = self.store.leading(wanted)
        if not hits:
            return 0
        if not ready:
            return None
        tokens = (first + hits) * chunk - computed
        if tokens < chunk:
            return 0
        return None if self._loading and not self._loading.isdisjoint(wanted[:hits]) else tokens

    def begin(self, load: Load) -> None:
        if not load.tokens:
            return
        record, block = self._of(load.job), self.keys.block_tokens
        end = load.start + load.tokens
        first, record.mark = load.start // self._chunk_tokens, -(-end // self._chunk_tokens)
        keys = record.keys[first: record.mark]
        self.store.pin(keys, record.access, first)
        if self.prefix_caching:
            self._loading.update(keys)
        blocks = load.job.block_table.blocks[load.start // block: -(-end // block)]
        self._begun.append(self._copy(record, range(first, record.mark), keys, blocks, loads=True))

    def sends_early(self, job: Job) -> bool:
        return False

    def holds(self, job: Job, complete: bool) -> bool:
        record = self._jobs.get(job)
        if record is not None:
            record.final = max(job.request.prompt, job.num_tokens - 1) if complete else min(
                job.num_computed_tokens, job.num_tokens)
            self._ended.append(record)
            for number in record.copies:
                self._copies.watch(self._copies[number])
        return False

    # Schedules.

    def schedule_made(self, schedule: Schedule, grown: Sequence[Job]) -> None:
        handed_out = self._hand_out(schedule, grown)
        hurried = {number for job in schedule.preempted for number in self._of(job).copies}
        hurried |= self._copies.touched(handed_out)
        stores = self._store_batch(schedule, grown)
        for record in self._ended:
            if store := self._store(record, record.final):
                stores.append(store)
                self._copies.watch(store)
                if not handed_out.isdisjoint(store.blocks):
                    hurried.add(store.number)
            self.store.close(record.access)
            record.closed = True
            self._forget(record)
        schedule.copies, schedule.hurried = [*self._begun, *stores], sorted(hurried)
        self._begun = []
        self._ended.clear()

    def _hand_out(self, schedule: Schedule, grown: Sequence[Job]) -> set[int]:
        """Note which blocks jobs have since *schedule*; return those that it has handed out: all of an admitted job or
        of one that loads, and the new ones of others."""
        handed_out: set[int] = set()
        for copy in self._begun:
            handed_out.update(copy.job.block_table.blocks)
        for job in schedule.admitted:
            self._of(job).blocks.clear()
        for job in (*grown, *(entry.job for entry in schedule.entries)):
            record, blocks = self._of(job), job.block_table.blocks
            if len(blocks) > len(record.blocks):
                new = blocks[len(record.blocks):]
                record.blocks += new
                handed_out.update(new)
        return handed_out

    def _store_batch(self, schedule: Schedule, grown: Sequence[Job]) -> list[Copy]:
        """Offer what the jobs of *schedule* have to offer, in their order; return the stores that begin.

        The counts of a decode are those of the step at which it joined the decode set, but its full blocks are
        published.
        """
        stirred = {job for job, _ in self.refused}.union(grown) if schedule.decodes else ()
        self.refused.clear()
        offers = [(job, job.block_table.published) for job in schedule.decodes if job in stirred] if stirred else []
        offers += [(entry.job, min(entry.job.num_computed_tokens, entry.job.num_tokens)) for entry in schedule.entries]
        return [store for job, tokens in offers if (store := self._store(self._of(job), tokens))]

    def _store(self, record: OffloadedJob, tokens: int) -> Copy | None:
        """Offer what is new among the first *tokens* tokens of a job; return the store that begins, if one does."""
        job = record.job
        if self.prompt_only:
            tokens = min(tokens, job.request.prompt)
        end = min(tokens // self._chunk_tokens, len(record.blocks) // self.blocks_per_chunk)
        if end <= record.mark:
            return None
        first, before = record.mark, record.refused
        if before is not None and before[1:] == (first, end) and self.store.refuses_again(before[0]):
            self.refused.append((job, end - first))
            return None
        keys = record.keys[first: end]
        taken = self.store.offer(keys, record.access, first)
        if taken is None:
            record.refused = self.store.changes, first, end
            self.refused.append((job, len(keys)))
            return None
        record.mark = end
        if not taken:
            return None
        chosen = set(taken)
        chunks = [index for index, key in enumerate(keys, first) if key in chosen]
        return self._copy(record, chunks, taken, job_blocks(record.blocks, chunks, self.blocks_per_chunk), loads=False)

    def _copy(self, record: OffloadedJob, chunks: Sequence[int], keys: Sequence[int], blocks: Sequence[int],
              loads: bool) -> Copy:
        copy = self._copies.begin(job=record.job, loads=loads, chunks=chunks, keys=keys, blocks=blocks,
                                  tokens=len(blocks) * self.keys.block_tokens)
        record.copies.add(copy.number)
        return copy

    def quiet_steps(self, decodes: DecodeSet, step: int) -> int:
        if self._ended or self._begun or not self._refuses_again():
            return 0
        if self.prompt_only and not self._copies.watching:
            return ALL
        growth = decodes.next_growth()
        return ALL if growth is None else growth - 1 - step

    @property
    def contents(self) -> Contents:
        return {"cpu": self.store}

    def _refuses_again(self) -> bool:
        """Whether the store would refuse in the next schedule what it has refused in the latest, and nothing else."""
        return not self.refused or (self.store.refuses_again(self.store.changes) and all(
            job in self._jobs and not self._jobs[job].closed for job, _ in self.refused))

    def tier_hits(self, request: Request, cached: int, contents: Contents | None = None) -> Mapping[str, int]:
        tiers = (self.contents if contents is None else contents).items()
        chunk, size = self._chunk_tokens, self.blocks_per_chunk
        first, hits = cached // chunk, dict[str, int]()
        for key in self.keys.of(request)[size - 1:: size][first: request.prompt // chunk]:
            if not (tier := next((name for name, keys in tiers if key in keys), "")):
                break
            hits[tier] = hits.get(tier, 0) + chunk
        for tier in hits:  # the first chunk counts from where the GPU's hit ends
            hits[tier] -= cached - first * chunk
            break
        return hits

    # What the workers report.

    def take(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            copy = self._copies.end(number)
            if copy.loads:
                self.store.unpin(copy.keys)
                self._loading.difference_update(copy.keys)
            else:
                self.store.stored(copy.keys)
            record = self._jobs[copy.job]
            record.copies.remove(number)
            self._forget(record)

    def _forget(self, record: OffloadedJob) -> None:
        if record.closed and not record.copies:
            del self._jobs[record.job]

    def _of(self, job: Job) -> OffloadedJob:
        record = self._jobs.get(job)
        if record is None:
            blocks = (job.request.prompt + job.output) // self.keys.block_tokens
            keys = self.keys.of(job.request, blocks)
            record = self._jobs[job] = OffloadedJob(job, keys[self.blocks_per_chunk - 1:: self.blocks_per_chunk])
        return record


@define(eq=False)
class JoinedConnector:
    """The scheduler's side: the first of `connectors` that can load anything for a job loads it, all of them store."""

    connectors: Sequence[Connector]
    _chosen: dict[Job, Connector] = field(factory=dict, init=False)

    @property
    def consumes(self) -> bool:
        return any(connector.consumes for connector in self.connectors)

    @property
    def recomputes(self) -> bool:
        return any(connector.recomputes for connector in self.connectors)

    def came(self, job: Job) -> None:
        for connector in self.connectors:
            connector.came(job)

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        answer: tuple[int, bool] = 0, False
        self._chosen.pop(job, None)
        for connector in self.connectors:
            tokens, asynchronous = connector.external_tokens(job, computed)
            if tokens is None:
                return None, True
            if tokens and not answer[0]:
                answer = tokens, asynchronous
                self._chosen[job] = connector
        return answer

    def begin(self, load: Load) -> None:
        chosen = self._chosen.pop(load.job, None)
        for connector in self.connectors:
            connector.begin(load if connector is chosen else evolve(load, tokens=0))

    def sends_early(self, job: Job) -> bool:
        return any(connector.sends_early(job) for connector in self.connectors)

    def holds(self, job: Job, complete: bool) -> bool:
        self._chosen.pop(job, None)
        held = [connector.holds(job, complete) for connector in self.connectors]
        return any(held)

    @property
    def copying(self) -> bool:
        return any(connector.copying for connector in self.connectors)

    @property
    def follows_decodes(self) -> bool:
        return any(connector.follows_decodes for connector in self.connectors)

    def schedule_made(self, schedule: Schedule, grown: Sequence[Job]) -> None:
        for connector in self.connectors:
            connector.schedule_made(schedule, grown)

    def take(self, numbers: Sequence[int]) -> None:
        for connector in self.connectors:
            connector.take(numbers)

    @property
    def contents(self) -> Contents:
        return {name: keys for connector in self.connectors for name, keys in connector.contents.items()}

    def tier_hits(self, request: Request, cached: int, contents: Contents | None = None) -> Mapping[str, int]:
        return next((hits for connector in self.connectors
                     if (hits := connector.tier_hits(request, cached, contents))), {})

    def quiet_steps(self, decodes: DecodeSet, step: int) -> int:
        return min(connector.quiet_steps(decodes, step) for connector in self.connectors)


@define(eq=False)
class JoinedWorker:
    """The workers' side: transfers to and from other engines through `endpoint`, copies by `offload`."""

    endpoint: Endpoint
    offload: OffloadWorker

    @property
    def wake(self) -> Callable[[], object]:
        return self.endpoint.wake

    @wake.setter
    def wake(self, wake: Callable[[], object]) -> None:
        self.endpoint.wake = self.offload.wake = wake

    def begin_turn(self, now: float) -> None:
        self.endpoint.begin_turn(now)
        self.offload.begin_turn(now)

    def ended(self) -> Sequence[Job]:
        return self.endpoint.ended()

    @property
    def may_start_flows(self) -> bool:
        return True  # the lanes that copies use carry what NICs send, too

    @property
    def awaiting(self) -> bool:
        return self.endpoint.awaiting or self.offload.awaiting

    @property
    def due(self) -> float:
        return min(self.endpoint.due, self.offload.due)

    def report(self, moment: float) -> ConnectorOutput | None:
        reports = [part for part in (self.endpoint.report(moment), self.offload.report(moment)) if part]
        if len(reports) < 2:
            return reports[0] if reports else None
        moved, copied = reports
        return evolve(moved, received=[*moved.received, *copied.received], copied=copied.copied)

    def hurry(self, schedule: Schedule, moment: float, computed: float | simpy.Event | None) -> simpy.Event | None:
        return self.offload.hurry(schedule, moment, computed)

    def launch(self, schedule: Schedule, scheduled: float, moment: float,
               computed: float | simpy.Event | None = None) -> None:
        self.offload.launch(schedule, scheduled, moment, computed)
        self.endpoint.launch(schedule, scheduled, moment, computed)

    def chunks_computed(self, schedule: Schedule, moment: float) -> None:
        self.endpoint.chunks_computed(schedule, moment)

    @property
    def expected(self) -> Collection[KvTransfer]:
        return self.endpoint.expected

    @property
    def waits_for_peers(self) -> bool:
        return self.endpoint.waits_for_peers or self.offload.waits_for_peers

    def expect(self, params: KvTransferParams, moment: float) -> None:
        self.endpoint.expect(params, moment)

    def finish(self, job: Job, moment: float) -> None:
        self.endpoint.finish(job, moment)
