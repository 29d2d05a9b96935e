"""The workers' side of MooncakeStoreConnector: copies between GPUs and the memory of any node."""

from attrs import define

from ksim.kv_offload.copy_stream import CopyStream, Submitted
from ksim.kv_offload.mooncake.pool import MooncakePool
from ksim.kv_offload.worker import OffloadWorker

__all__ = ["MooncakeWorker"]


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
