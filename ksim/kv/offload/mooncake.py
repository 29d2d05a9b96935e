"""Mooncake Store: a pool of the host memory of all nodes, which all engines share.

By the scheduler's side of MooncakeStoreConnector, blocks that any engine stored are found by all.  By the workers'
side, they are copied between GPUs and the memory of any node.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any, ClassVar
from zlib import crc32

from attrs import define, field

from ksim.flow.request import Request
from ksim.kv.offload.connector import OffloadConnector
from ksim.kv.offload.evictions import RequestAccess
from ksim.kv.offload.store import StoreListener
from ksim.kv.offload.worker import CopyStream, OffloadWorker, Submitted
from ksim.scheduling.connector import Contents
from ksim.scheduling.job import Job, Load

__all__ = ["MooncakePool", "MooncakeConnector", "MooncakeWorker"]


@define(eq=False)
class MooncakePool:
    """The blocks that segments of host memory have, each in one segment; what vLLM sees of Mooncake's master.

    A block goes to a segment that is drawn by *seed*, or to the next one with room.  Beyond `high` of the capacity, a
    share of all blocks leaves, those first that were found or stored longest ago.  Blocks that loads use stay.  A block
    can be found once it is stored.  It answers what a `ChunkStore` is asked.
    """

    shared: ClassVar[bool] = True

    seed: int = 0
    high: float = 0.95
    ratio: float = 0.05
    listener: StoreListener | None = None
    _hosts: list[str] = field(factory=list, init=False)
    _rooms: list[int] = field(factory=list, init=False)  # blocks that each segment has room for
    _used: Counter[int] = field(factory=Counter, init=False)
    _segments: dict[int, int] = field(factory=dict, init=False)  # of blocks that are there or on their way
    _loads: OrderedDict[int, int] = field(factory=OrderedDict, init=False)  # of blocks that are there

    def add_segment(self, host: str, blocks: int) -> None:
        """Take in a segment of the memory of *host*, such as "host0"."""
        self._hosts.append(host)
        self._rooms.append(blocks)

    @property
    def capacity(self) -> int:
        return sum(self._rooms)

    def __len__(self) -> int:
        """How many blocks have room in it, stored or on their way."""
        return len(self._segments)

    def __contains__(self, key: object) -> bool:
        return key in self._loads

    def hosts(self, keys: Iterable[int]) -> Counter[str]:
        """How many of the blocks *keys* each host has."""
        return Counter(self._hosts[self._segments[key]] for key in keys)

    # What connectors ask.

    def leading(self, keys: Sequence[int]) -> tuple[int, bool]:
        """How many of *keys*, from the first on, are there, and that all of these are ready."""
        return next((index for index, key in enumerate(keys) if key not in self._loads), len(keys)), True

    def renew(self, keys: Sequence[int]) -> None:
        """A lookup has found *keys*, so they stay longest: Mooncake's lease."""
        for key in reversed(keys):
            self._loads.move_to_end(key)

    def pin(self, keys: Sequence[int], access: RequestAccess, first: int) -> None:
        """Keep *keys* while a request loads them."""
        for key in keys:
            self._loads[key] += 1

    def unpin(self, keys: Sequence[int]) -> None:
        """A load of *keys* has ended."""
        for key in keys:
            assert self._loads[key] > 0, "a load ended that had not begun"
            self._loads[key] -= 1

    def offer(self, keys: Sequence[int], access: RequestAccess, first: int) -> list[int]:
        """Take those of *keys* that are not there, nor on their way, as far as there is room; return them."""
        taken = list[int]()
        for key in keys:
            if key not in self._segments:
                if not self._place(key):
                    break
                taken.append(key)
        if len(self) > self.high * self.capacity:
            self._evict()
        return taken

    def stored(self, keys: Sequence[int]) -> None:
        """Do nothing: *keys* can be found since their copy has `arrived`."""

    def close(self, access: RequestAccess) -> None:
        """Do nothing: no request has a rank of its own."""

    # What workers report.

    def arrived(self, keys: Sequence[int]) -> None:
        """The copy of *keys* has ended: from now on they can be found."""
        self._loads.update(dict.fromkeys(reversed(keys), 0))
        if self.listener is not None:
            self.listener.taken(keys)
            self.listener.stored(keys)

    def _place(self, key: int) -> bool:
        """Give a block room in a segment; return whether there is any."""
        if len(self) >= self.capacity and not (self._loads and self._evict()):
            return False
        count = len(self._rooms)
        drawn = crc32(f"{self.seed} {key}".encode()) % count
        segment = next(index % count for index in range(drawn, drawn + count)
                       if self._used[index % count] < self._rooms[index % count])
        self._segments[key] = segment
        self._used[segment] += 1
        return True

    def _evict(self) -> bool:
        """Let go of a share of all blocks; return whether any could go."""
        share = max(self.ratio, len(self) / self.capacity - self.high + self.ratio)
        wanted, gone = ceil(round(share * len(self), 6)), list[int]()
        for key, loads in self._loads.items():
            if not loads:
                gone.append(key)
                if len(gone) == wanted:
                    break
        for key in gone:
            del self._loads[key]
            self._used[self._segments.pop(key)] -= 1
        if gone and self.listener is not None:
            self.listener.evicted(gone)
        return bool(gone)


@define(eq=False)
class MooncakeConnector(OffloadConnector):
    """Looks a prompt up from its first block on, so a block that the pool lacks ends the hit, though the GPU has it.

    All else is as with host memory: loads are asynchronous, and blocks of prompts are stored once they are full.
    Nobody waits for blocks that are on their way to the pool, nor for those that another request loads.
    """

    @property
    def _pool(self) -> MooncakePool:
        pool: Any = self.store  # it answers what a ChunkStore is asked
        assert isinstance(pool, MooncakePool), "engines of a fleet share a pool"
        return pool

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        tokens, _ = super().external_tokens(job, computed)
        if tokens is None or not job.reads_cache:
            return tokens, True
        keys = self._of(job).keys[:job.num_tokens // self.keys.block_tokens]
        hits, _ = self._pool.leading(keys)
        self._pool.renew(keys[:hits])
        return max(0, hits * self.keys.block_tokens - computed), True

    def begin(self, load: Load) -> None:
        super().begin(load)
        self._loading.clear()  # nobody waits for what others load

    def tier_hits(self, request: Request, cached: int, contents: Contents | None = None) -> Mapping[str, int]:
        block, pool = self.keys.block_tokens, (self.contents if contents is None else contents)["cpu"]
        keys = self.keys.of(request)[:request.prompt // block]
        tokens = next((index for index, key in enumerate(keys) if key not in pool), len(keys)) * block
        return {"cpu": tokens - cached} if tokens > cached else {}


@define(eq=False, kw_only=True)
class PooledStream(CopyStream):
    """Copies go to the nodes whose memory has the blocks of `pool`, or come from them: a flow for each node and GPU."""

    pool: MooncakePool
    stores: bool

    def _begin(self) -> None:
        active = self._active
        assert active is not None, "a stream without copies waits for nothing"
        links, hosts = self.network.links, self.pool.hosts(active.copy.keys)
        active.began, active._left = self.network.env.now, len(self.lanes) * len(hosts)
        for lane in self.lanes:
            for host, blocks in hosts.items():
                ends = (f"gpu{lane.gpu}", host) if self.stores else (host, f"gpu{lane.gpu}")
                flow = self.network.flows.start(blocks * lane.block_bytes, links.path(*ends))
                active.bytes += flow.size
                flow.done.callbacks.append(lambda _: self._part_ended())


@define(eq=False, kw_only=True)
class MooncakeWorker(OffloadWorker):
    """Moves blocks of an engine's GPUs to `pool` and back; what it has stored, other engines find."""

    pool: MooncakePool

    def __attrs_post_init__(self) -> None:
        self._loads = PooledStream(self.network, self.loading, self._end, pool=self.pool, stores=False)
        self._stores = PooledStream(self.network, self.storing, self._end, pool=self.pool, stores=True)

    @property
    def may_start_flows(self) -> bool:
        return True  # other engines share the pool and the network

    @property
    def waits_for_peers(self) -> bool:
        return True  # what others have stored is found from then on

    def _end(self, submitted: Submitted) -> None:
        if not submitted.copy.loads:
            self.pool.arrived(submitted.copy.keys)
        super()._end(submitted)
