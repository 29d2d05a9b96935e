"""SGLang's HiCache, scheduler side: what comes back from host memory before a prompt is computed, and what goes there.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import define, field, frozen

from ksim.flow.request import Request
from ksim.kv_offload.hicache.cache import HiCache, HostNode
from ksim.kv_offload.hicache.prefetch import Prefetches
from ksim.scheduling.connector import Contents
from ksim.scheduling.copies import Copy, Load
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Job
from ksim.scheduling.policies import ALL
from ksim.scheduling.schedule import Schedule

__all__ = ["HicacheConnector"]


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
