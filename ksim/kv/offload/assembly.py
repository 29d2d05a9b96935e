"""The workers' side of a connector that offloads, and what is needed to build one."""

from collections.abc import Mapping
from typing import Any

from ksim.kv.offload.connectors import OffloadParts, TierSettings
from ksim.kv.offload.connectors.hicache import Hicache
from ksim.kv.offload.hicache.connector import HicacheConnector
from ksim.kv.offload.hicache.worker import HicacheWorker
from ksim.kv.offload.mooncake import MooncakePool, MooncakeWorker
from ksim.kv.offload.store import SecondaryTier, TierThreads
from ksim.kv.offload.tiered import TieredConnector, TieredWorker
from ksim.kv.offload.worker import Lane, OffloadWorker
from ksim.scheduling.connector import Connector

__all__ = ["Hicache", "Lane", "MooncakePool", "OffloadWorker", "SecondaryTier", "worker_of"]


def worker_of(connector: Connector, parts: OffloadParts, common: Mapping[str, Any],
              tiers: Mapping[SecondaryTier, TierSettings], host: str, chunk_bytes: float) -> OffloadWorker:
    """The workers' side of *connector*, which was built of *parts*, on a node whose memory is called *host*.

    It takes what all workers have in *common*, the fields of an `OffloadWorker`.  Its *tiers* are behind that memory,
    and take chunks of so many bytes.
    """
    if isinstance(connector, HicacheConnector):
        if connector.prefetches is None:
            return OffloadWorker(**common)
        return HicacheWorker(**common, connector=connector, prefetches=connector.prefetches, page_bytes=chunk_bytes,
                             host=host)
    if parts.pool is not None:
        return MooncakeWorker(**common, pool=parts.pool)
    if not tiers:
        return OffloadWorker(**common)
    assert isinstance(connector, TieredConnector), "connectors with tiers know them"
    return TieredWorker(**common, connector=connector, threads={
        tier: TierThreads(network=common["network"], host=host, chunk_bytes=chunk_bytes, read=said.read_threads,
                          write=said.write_threads) for tier, said in tiers.items()})
