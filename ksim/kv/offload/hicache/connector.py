"""SGLang's HiCache, scheduler side: what comes back before a prompt is computed, and what goes out.

Pages come from host memory, and from storage behind it while a request waits: the disks of a node, a storage, or all
nodes' memory.  The rules are those of SGLang's Scheduler._prefetch_kvcache, HiRadixCache.prefetch_from_storage and
check_prefetch_progress, and of HiCacheController.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import ClassVar, Protocol

from attrs import define, field, frozen
from attrs.validators import ge, in_

from ksim.flow.request import BlockKeys, Request
from ksim.kv.offload.evictions import RequestAccess
from ksim.kv.offload.hicache.cache import HiCache, HostNode, PromptTable
from ksim.kv.offload.mooncake import MooncakePool
from ksim.kv.offload.store import SecondaryTier
from ksim.scheduling.connector import Contents
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Copy, Job, Load, Schedule
from ksim.scheduling.policies import ALL

__all__ = ["BATCH", "POLICIES", "HicacheConnector", "PageStorage", "PooledStorage", "PrefetchRules", "Prefetches",
           "StorageJob", "TierStorage"]


#: How many pages are read or written at once (SGLang's STORAGE_BATCH_SIZE).
BATCH = 128


@define(eq=False)
class StorageJob:
    """Pages of a request on their way from storage to host memory, if it `reads`, or from there to storage.

    They move batch by batch; `moved` counts the pages that the scheduler knows to have arrived.  A job that is
    `stopped` ends after the batch under way.
    """

    job: Job
    keys: Sequence[int]
    reads: bool
    moved: int = 0
    stopped: bool = False
    over: bool = False


class PageStorage(Protocol):
    """Pages of KV by their keys, which engines share.

    Pages lie at ends of links, such as "disk0" or "host1".
    """

    @property
    def name(self) -> str:
        """The name of the tier in results."""
        ...

    def leading(self, keys: Sequence[int]) -> int:
        """How many of *keys*, from the first on, are there."""
        ...

    def begin_read(self, keys: Sequence[int]) -> Mapping[str, int]:
        """Pages that are there begin to be read: how many come from which end."""
        ...

    def end_read(self, keys: Sequence[int]) -> None:
        """Pages have been read."""
        ...

    def begin_write(self, keys: Sequence[int]) -> tuple[Sequence[int], Mapping[str, int]]:
        """Pages begin to be written: those that were not there, and how many go to which end."""
        ...

    def end_write(self, keys: Sequence[int]) -> None:
        """Pages that were not there have been written."""
        ...


@define(eq=False)
class TierStorage:
    """Pages on the disks of a node, or in the storage of a fleet: those of `tier`."""

    tier: SecondaryTier

    @property
    def name(self) -> str:
        return self.tier.name

    def leading(self, keys: Sequence[int]) -> int:
        return next((place for place, key in enumerate(keys) if key not in self.tier), len(keys))

    def begin_read(self, keys: Sequence[int]) -> Mapping[str, int]:
        self.tier.touch(keys)
        return {self.tier.end: len(keys)}

    def end_read(self, keys: Sequence[int]) -> None:
        """Do nothing: files that are being read may be forgotten."""

    def begin_write(self, keys: Sequence[int]) -> tuple[Sequence[int], Mapping[str, int]]:
        absent = [key for key in keys if key not in self.tier]
        return absent, {self.tier.end: len(absent)} if absent else {}

    def end_write(self, keys: Sequence[int]) -> None:
        self.tier.add(keys)


@define(eq=False)
class PooledStorage:
    """Pages in Mooncake's store: the host memory that all nodes give to `pool`."""

    pool: MooncakePool
    name: str = "storage"
    _access: RequestAccess = field(factory=RequestAccess, init=False)

    def leading(self, keys: Sequence[int]) -> int:
        return self.pool.leading(keys)[0]

    def begin_read(self, keys: Sequence[int]) -> Mapping[str, int]:
        self.pool.renew(keys)
        self.pool.pin(keys, self._access, 0)
        return self.pool.hosts(keys)

    def end_read(self, keys: Sequence[int]) -> None:
        self.pool.unpin(keys)

    def begin_write(self, keys: Sequence[int]) -> tuple[Sequence[int], Mapping[str, int]]:
        taken = self.pool.offer(keys, self._access, 0)
        return taken, Counter(self.pool.hosts(taken))

    def end_write(self, keys: Sequence[int]) -> None:
        self.pool.arrived(keys)


#: When a request that could be admitted does not wait any longer for what comes from storage.
POLICIES = ("best_effort", "wait_complete", "timeout")
#: The share of host memory that requested prefetches may take.
SHARE = 0.5


@frozen(kw_only=True)
class PrefetchRules:
    """At least `threshold` tokens are fetched, and with the policy "timeout" for at most `base` seconds and
    `per_ki_token` for 1,024 tokens, or for `most` seconds."""

    policy: str = field(default="timeout", validator=in_(POLICIES))
    threshold: int = field(default=256, validator=ge(0))
    base: float = field(default=2.0, validator=ge(0))
    per_ki_token: float = field(default=0.1, validator=ge(0))
    most: float = field(default=30.0, validator=ge(0))

    def seconds(self, tokens: int) -> float:
        """How long a request waits for so many *tokens*, if need be."""
        return {"best_effort": 0.0, "wait_complete": inf}.get(
            self.policy, min(self.most, self.base + self.per_ki_token * tokens / 1024))


@define(eq=False)
class Prefetch:
    """What is fetched for `job`, of which `wanted` tokens after the first `start` were asked for at `asked`.

    It continues what host memory has at `node`.  `read` is None until storage has answered.  A job that `waits` was to
    be admitted, and could not.
    """

    job: Job
    start: int
    wanted: int
    node: HostNode
    asked: float
    read: StorageJob | None = None
    waits: bool = False


@define(eq=False)
class Prefetches:
    """Prefetches into the host memory of `cache` from `storage`, and writes to it, in pages of `keys`' size.

    A prefetch begins when its request comes to the queue.  Storage answers in the next schedule.  `now` is the time of
    the latest schedule.
    """

    cache: HiCache
    storage: PageStorage
    keys: BlockKeys
    rules: PrefetchRules
    now: float = field(default=0.0, init=False)
    #: Reads and writes to begin.
    begun: list[StorageJob] = field(factory=list, init=False)
    #: Prefetches that storage has not answered.
    unanswered: list[Prefetch] = field(factory=list, init=False)
    _came: list[Job] = field(factory=list, init=False)
    _of: dict[Job, Prefetch] = field(factory=dict, init=False)
    _fetched: dict[Job, int] = field(factory=dict, init=False)  # tokens that came for a job
    _occupied: int = field(default=0, init=False)  # tokens that prefetches have asked for
    _written: dict[StorageJob, HostNode] = field(factory=dict, init=False)
    _rooms: dict[StorageJob, int] = field(factory=dict, init=False)  # host memory set aside for reads, in tokens

    # What the scheduler asks.

    def come(self, job: Job) -> None:
        """A job has come to the queue."""
        self._came.append(job)

    def settled(self, job: Job) -> bool:
        """Whether *job* need not wait any longer; what has come by now is in host memory then."""
        prefetch = self._of.get(job)
        if prefetch is None:
            return True
        read = prefetch.read
        if not (read and read.over) and self.now < self._deadline(prefetch):
            prefetch.waits = True
            return False
        self._end(prefetch)
        if read:
            added = self.cache.add_from_storage(job.block_table, prefetch.start,
                                                prefetch.start + read.moved * self.keys.block_tokens)
            self._fetched[job] = added
            self._rooms[read] -= added
            self._give_room(read)
        return True

    def drop(self, job: Job) -> None:
        """A job has ended, maybe while it waited."""
        self._fetched.pop(job, None)
        if job in self._came:
            self._came.remove(job)
        prefetch = self._of.get(job)
        if prefetch is not None:
            self._end(prefetch)
            if prefetch.read:
                self._give_room(prefetch.read)

    def fetched(self, job: Job) -> int:
        """How many tokens came from storage for *job*; asked once, when they are loaded."""
        return self._fetched.pop(job, 0)

    def keep(self, job: Job, node: HostNode, start: int) -> None:
        """Write to storage the pages of *node* that end after the first *start* tokens; host memory has them."""
        page, table = self.keys.block_tokens, node.source
        assert isinstance(table, PromptTable) and table.request is not None, "nodes come from requests"
        keys = self.keys.of(table.request, node.end // page)[start // page:]
        if keys and node.backed:
            node.held += 1
            write = StorageJob(job, keys, reads=False)
            self._written[write] = node
            self.begun.append(write)

    def hits(self, request: Request, known: int) -> int:
        """How many tokens of the prompt of *request* beyond the first *known* ones would be fetched now."""
        page = self.keys.block_tokens
        first = known // page
        pages = self.storage.leading(self.keys.of(request)[first: request.prompt // page])
        return max(0, (first + pages) * page - known) if pages * page >= self._least else 0

    # What the workers say.

    def begin_turn(self, now: float) -> None:
        """A schedule is about to be made at *now*: take up what came for it, and what storage has answered."""
        self.now = now
        answered, self.unanswered = self.unanswered, []
        for prefetch in answered:
            self._take_answer(prefetch)
        self.unanswered = [begun for job in self._came if (begun := self._ask(job))]
        self._came.clear()

    def moved(self, job: StorageJob, pages: int) -> None:
        """Pages of a read have arrived; those of one that is stopped are not wanted."""
        if not job.stopped:
            job.moved += pages

    def ended(self, job: StorageJob) -> None:
        """A read or write has ended."""
        job.over = True
        if not job.reads:
            self._written.pop(job).held -= 1
        elif job.stopped:
            self._give_room(job)

    @property
    def due(self) -> float:
        """When a job that waits need not wait any longer, if nothing arrives."""
        times = [self._deadline(prefetch) for prefetch in self._of.values() if prefetch.waits]
        return min((time for time in times if time > self.now), default=inf)

    # Prefetches.

    @property
    def _least(self) -> int:
        return max(self.rules.threshold, self.keys.block_tokens)

    def _ask(self, job: Job) -> Prefetch | None:
        """Ask storage for what no memory has of the prompt of *job*, if that is enough."""
        found = self.cache.continued_by_storage(job.block_table, job.num_tokens)
        if found is None or not job.reads_cache or self._occupied >= SHARE * self.cache.host_capacity:
            return None
        page, (tokens, node) = self.keys.block_tokens, found
        start = tokens // page * page
        wanted = (job.num_tokens - start) // page * page
        if wanted < self._least:
            return None
        node.held += 1
        self._occupied += wanted
        self._of[job] = Prefetch(job, start, wanted, node, self.now)
        return self._of[job]

    def _take_answer(self, prefetch: Prefetch) -> None:
        """Begin to read what storage has of a prefetch, or give it up where that is too little."""
        page, first = self.keys.block_tokens, prefetch.start // self.keys.block_tokens
        keys = self.keys.of(prefetch.job.request)[first: first + prefetch.wanted // page]
        keys = keys[:self.storage.leading(keys)]
        room = len(keys) * page
        if room < self._least or not (room := self.cache.take_host_room(room, page, self._least)):
            self._end(prefetch)
            return
        prefetch.read = StorageJob(prefetch.job, keys[:room // page], reads=True)
        self._rooms[prefetch.read] = room
        self.begun.append(prefetch.read)

    def _end(self, prefetch: Prefetch) -> None:
        """Nobody waits for *prefetch* any longer; a batch that is under way goes on."""
        del self._of[prefetch.job]
        prefetch.node.held -= 1
        self._occupied -= prefetch.wanted
        if prefetch.read:
            prefetch.read.stopped = True
        elif prefetch in self.unanswered:
            self.unanswered.remove(prefetch)

    def _give_room(self, read: StorageJob) -> None:
        """Free the host memory that was set aside for what will not be kept, once nothing comes there any more."""
        coming = 0 if read.over else (len(read.keys) - read.moved) * self.keys.block_tokens
        self.cache.host_free += self._rooms[read] - coming
        self._rooms[read] = coming
        if read.over:
            del self._rooms[read]

    def _deadline(self, prefetch: Prefetch) -> float:
        return prefetch.asked + self.rules.seconds(len(prefetch.read.keys) * self.keys.block_tokens
                                                   if prefetch.read else 0)


@define(eq=False)
class HicacheConnector:
    """Loads what `cache`, which is the engine's, has in host memory only, if that is `load_back_threshold` tokens or
    more.

    A load ends before the kernels of the step that admits its job; SGLang computes a layer as soon as it is loaded.
    Blocks of copies are single tokens.  With storage behind host memory, `prefetches` are ahead of the load.
    """

    cache: HiCache
    load_back_threshold: int = 10
    prefetches: Prefetches | None = None
    #: The tokens of a load, by its number, that had come from storage for its request.
    origins: dict[int, Mapping[str, int]] = field(factory=dict, init=False)
    _copies: dict[int, "_Write | None"] = field(factory=dict, init=False)  # that have not ended: what they write
    _number: int = field(default=0, init=False)
    _begun: list[Copy] = field(factory=list, init=False)
    _latest: Job | None = field(default=None, init=False)  # whose nodes writes are told of

    consumes: ClassVar[bool] = True
    recomputes: ClassVar[bool] = False
    follows_decodes: ClassVar[bool] = False

    @property
    def copying(self) -> bool:
        return bool(self._copies)

    def came(self, job: Job) -> None:
        if self.prefetches is not None:
            self.prefetches.come(job)

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        self._latest = job
        if self.prefetches is not None and not self.prefetches.settled(job):
            return None, False
        if not job.reads_cache:
            return 0, False
        tokens = self.cache.host_tokens(job.block_table, job.num_tokens, computed)
        if tokens < self.load_back_threshold:
            return 0, False
        self.cache.want(job.block_table, job.num_tokens)
        return tokens, False

    def begin(self, load: Load) -> None:
        if load.tokens:
            self.cache.load(load.job.block_table, load.start + load.tokens)
            copy = self._copy(load.job, load.tokens, None)
            self._begun.append(copy)
            if self.prefetches is not None and (fetched := self.prefetches.fetched(load.job)):
                self.origins[copy.number] = {self.prefetches.storage.name: min(fetched, load.tokens)}

    def sends_early(self, job: Job) -> bool:
        return False

    def holds(self, job: Job, complete: bool) -> bool:
        self._latest = job
        if self.prefetches is not None:
            self.prefetches.drop(job)
        return False

    def schedule_made(self, schedule: Schedule, grown: Sequence[Job]) -> None:
        copies, hurried = self._begun, [copy.number for copy in self._begun]
        for node, tokens, at_once in self.cache.writes:
            assert self._latest is not None, "nodes come from requests"
            copy = self._copy(self._latest, tokens, _Write(self._latest, node, node.end - tokens, at_once), loads=False)
            copies.append(copy)
            if at_once:
                hurried.append(copy.number)
        schedule.copies, schedule.hurried = copies, hurried
        self._begun, self.cache.writes = [], []

    def _copy(self, job: Job, tokens: int, write: "_Write | None", loads: bool = True) -> Copy:
        copy = Copy(number=self._number, job=job, loads=loads, chunks=(), keys=(), blocks=range(tokens), tokens=tokens,
                    asynchronous=False)
        self._number += 1
        self._copies[copy.number] = write
        return copy

    def take(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if (write := self._copies.pop(number)) is not None:
                if not write.at_once:
                    self.cache.written(write.node)
                if self.prefetches is not None:
                    self.prefetches.keep(write.job, write.node, write.start)

    def quiet_steps(self, decodes: DecodeSet, step: int) -> int:
        if self.cache.writes:
            return 0
        if self.cache.write_policy != "write_back":
            return ALL
        return self.cache.pool.empty // max(1, len(decodes.members))  # until something is evicted, and written

    @property
    def contents(self) -> Contents:
        return {}  # tokens of a tree have no keys

    def tier_hits(self, request: Request, cached: int, contents: Contents | None = None) -> Mapping[str, int]:
        tokens = self.cache.host_tokens(self.cache.block_table(request.keyed), request.prompt, cached)
        hits = {"cpu": tokens} if tokens else {}
        if self.prefetches is not None and (stored := self.prefetches.hits(request, cached + tokens)):
            hits[self.prefetches.storage.name] = stored
        return hits


@frozen
class _Write:
    """The tokens of *node* after the first *start* ones are on their way to host memory, for the latest job."""

    job: Job
    node: HostNode
    start: int
    at_once: bool
