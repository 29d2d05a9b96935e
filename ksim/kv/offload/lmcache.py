"""LMCache: chunks of KV in the host memory of an engine.

Its connector loads within a step, and stores after a step before the next begins.  Its store knows what it has, what is
pinned, and what is lost for others.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import define, field

from ksim.flow.request import BlockKeys, Request
from ksim.kv.offload.store import StoreListener
from ksim.scheduling.connector import Contents
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Copy, Job, Load, Schedule
from ksim.scheduling.policies import ALL

__all__ = ["LmcacheStore", "LmcacheConnector"]


@define(eq=False)
class LmcacheStore:
    """Has room for `capacity` chunks, known by their keys; LMCache's `LocalCPUBackend` with its LRU policy.

    A chunk is in the store once its copy has ended; its room is taken when the copy begins.  New chunks come in the
    order of the prompt.  A lookup pins what it finds, and moves it to the end, heads behind tails.  The least recent
    chunk that nobody has pinned makes room for others.
    """

    capacity: int
    listener: StoreListener | None = None
    storing: int = field(default=0, init=False)
    _pins: OrderedDict[int, int] = field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._pins) + self.storing

    def __contains__(self, key: object) -> bool:
        return key in self._pins

    def look_up(self, keys: Sequence[int]) -> int:
        """Pin the leading *keys* that are there; return how many these are."""
        hits = next((index for index, key in enumerate(keys) if key not in self._pins), len(keys))
        for key in reversed(keys[:hits]):
            self._pins[key] += 1
            self._pins.move_to_end(key)
        return hits

    def unpin(self, keys: Sequence[int]) -> None:
        for key in keys:
            assert self._pins[key] > 0, "a chunk is given back that nobody holds"
            self._pins[key] -= 1

    def make_room(self, chunks: int) -> int:
        """Take room for *chunks*, or for as many as there is; return how many these are."""
        evicted, missing = list[int](), len(self) + chunks - self.capacity
        if missing > 0:
            for key, pins in self._pins.items():
                if len(evicted) == missing:
                    break
                if not pins:
                    evicted.append(key)
            for key in evicted:
                del self._pins[key]
            if evicted and self.listener is not None:
                self.listener.evicted(evicted)
        fits = min(chunks, self.capacity - len(self))
        self.storing += fits
        return fits

    def stored(self, keys: Sequence[int]) -> None:
        """The copies of *keys* have ended; of a chunk that is there by now, the second one is dropped."""
        self.storing -= len(keys)
        new = [key for key in keys if key not in self._pins]
        self._pins.update(dict.fromkeys(new, 0))
        if new and self.listener is not None:
            self.listener.taken(new)
            self.listener.stored(new)


@define(eq=False)
class _Tracked:
    """What the connector knows of a job; LMCache's `RequestTracker`.

    `keys` name its chunks.  `hits` of them were found when it was looked up, None before that, and stay `pinned` until
    it is admitted.  The first `saved` ones were in the store then, or were stored since.  Tokens after the first
    `prefill` are decoded.
    """

    job: Job
    keys: Sequence[int]
    hits: int | None = None
    pinned: int = 0
    saved: int = 0
    prefill: int = 0


@define(eq=False)
class LmcacheConnector:
    """Looks prompts up in `store`, in chunks of `blocks_per_chunk` blocks, and stores each chunk once it is computed.

    A load ends before the kernels of the step that admits its job.  A store begins when a step is computed, and the
    next step waits for it.  With `save_decode`, chunks of outputs are stored, too.  With `min_load`, fewer tokens are
    not loaded.  `prefix_caching` is the GPU's.
    """

    store: LmcacheStore
    keys: BlockKeys
    blocks_per_chunk: int
    save_decode: bool = False
    min_load: int = 0
    prefix_caching: bool = True
    _chunk_tokens: int = field(init=False)
    _jobs: dict[Job, _Tracked] = field(factory=dict, init=False)
    _copies: dict[int, Copy] = field(factory=dict, init=False)  # that have not ended
    _number: int = field(default=0, init=False)
    _begun: list[Copy] = field(factory=list, init=False)  # loads of the schedule being made
    _stores: list[int] = field(factory=list, init=False)  # of the latest schedule

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
        return self.save_decode and not self.prefix_caching

    # What the scheduler asks.

    def came(self, job: Job) -> None:
        """Do nothing: nothing is copied ahead."""

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        if not job.reads_cache:
            return 0, False
        record = self._of(job)
        if record.hits is None:
            record.hits = record.pinned = self.store.look_up(record.keys[:job.num_tokens // self._chunk_tokens])
        found = record.hits * self._chunk_tokens
        wanted = found - computed - (found == job.num_tokens)  # the last token is computed again
        return (wanted if wanted >= max(1, self.min_load) else 0), False

    def begin(self, load: Load) -> None:
        """Take note of an admission; chunks are loaded whole, also where the GPU's cache has their first blocks."""
        record = self._of(load.job)
        hits = record.hits or 0
        record.hits, record.saved, record.prefill = None, hits, load.job.num_tokens
        self._unpin(record)  # what the step stores may take the place of a chunk only after it was loaded
        if load.tokens:
            self._begun.append(self._copy(record, load.start // self._chunk_tokens, hits, missing=load.start))

    def _unpin(self, record: _Tracked) -> None:
        self.store.unpin(record.keys[:record.pinned])
        record.pinned = 0

    def sends_early(self, job: Job) -> bool:
        return False

    def holds(self, job: Job, complete: bool) -> bool:
        """Its blocks are free at once: a step that takes them begins after the stores of the step before it."""
        if record := self._jobs.pop(job, None):
            self._unpin(record)
        return False

    # Schedules.

    def schedule_made(self, schedule: Schedule, grown: Sequence[Job]) -> None:
        hurried = [number for number in self._stores if number in self._copies]
        hurried += [copy.number for copy in self._begun]
        offers = [(entry.job, min(entry.job.num_computed_tokens, entry.job.num_tokens)) for entry in schedule.entries]
        if self.save_decode:
            offers = [(job, job.block_table.published) for job in grown] + offers
        stores = [store for job, tokens in offers if (store := self._store(self._of(job), tokens))]
        schedule.copies, schedule.hurried = [*self._begun, *stores], hurried
        self._begun, self._stores = [], [store.number for store in stores]

    def _store(self, record: _Tracked, tokens: int) -> Copy | None:
        """Store the chunks that are full with the first *tokens* tokens of a job, or as many as there is room for.

        Those that find no room are not offered again.
        """
        if not self.save_decode:
            tokens = min(tokens, record.prefill)
        first, end = record.saved, tokens // self._chunk_tokens
        if end <= first:
            return None
        record.saved = end
        fits = self.store.make_room(end - first)
        return self._copy(record, first, first + fits) if fits else None

    def _copy(self, record: _Tracked, first: int, end: int, missing: int | None = None) -> Copy:
        """A copy of the chunks from *first* to before *end*: a load, if the tokens after *missing* are missing."""
        size, blocks = self.blocks_per_chunk, record.job.block_table.blocks
        begin = first * self._chunk_tokens if missing is None else missing
        copy = Copy(number=self._number, job=record.job, loads=missing is not None, asynchronous=False,
                    chunks=range(first, end), keys=record.keys[first:end], blocks=blocks[first * size: end * size],
                    tokens=end * self._chunk_tokens - begin)
        self._number += 1
        self._copies[copy.number] = copy
        return copy

    @property
    def contents(self) -> Contents:
        return {"cpu": self.store}

    def tier_hits(self, request: Request, cached: int, contents: Contents | None = None) -> Mapping[str, int]:
        stored = (self.contents if contents is None else contents)["cpu"]
        chunk, size = self._chunk_tokens, self.blocks_per_chunk
        keys = self.keys.of(request)[size - 1:: size][:request.prompt // chunk]
        tokens = next((index for index, key in enumerate(keys) if key not in stored), len(keys)) * chunk
        return {"cpu": tokens - cached} if tokens > cached else {}

    def quiet_steps(self, decodes: DecodeSet, step: int) -> int:
        if self._stores:  # the next batch waits for them
            return 0
        if not self.save_decode:
            return ALL
        growth = decodes.next_growth()
        return ALL if growth is None else growth - 1 - step

    # What the workers report.

    def take(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            copy = self._copies.pop(number)
            if not copy.loads:
                self.store.stored(copy.keys)

    def _of(self, job: Job) -> _Tracked:
        record = self._jobs.get(job)
        if record is None:
            keys = self.keys.of(job.request, (job.request.prompt + job.output) // self.keys.block_tokens)
            record = self._jobs[job] = _Tracked(job, keys[self.blocks_per_chunk - 1:: self.blocks_per_chunk])
        return record
