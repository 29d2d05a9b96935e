"""What engines that offload are built of: the stores that they share, and the worker that goes with a connector."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field

from ksim.kv.offload.connectors import OffloadParts, TierSettings
from ksim.kv.offload.connectors.hicache import Hicache
from ksim.kv.offload.hicache.connector import HicacheConnector
from ksim.kv.offload.hicache.worker import HicacheWorker
from ksim.kv.offload.mooncake import MooncakePool, MooncakeWorker
from ksim.kv.offload.store import SecondaryTier, TierThreads
from ksim.kv.offload.tiered import TieredConnector, TieredWorker
from ksim.kv.offload.worker import Lane, OffloadWorker
from ksim.scheduling.connector import Connector

__all__ = ["Hicache", "Lane", "OffloadWorker", "SecondaryTier", "SharedStores", "worker_of"]


@define(eq=False)
class SharedStores:
    """The tiers and the pools that engines of a run share, if their chunks have one size."""

    _tiers: dict[tuple[str, int], SecondaryTier] = field(factory=dict, init=False)
    _pools: dict[tuple[str, int, int, int], MooncakePool] = field(factory=dict, init=False)

    def tier(self, kind: str, end: str, chunk_bytes: float, capacity: int | None) -> SecondaryTier:
        """The tier of this *kind* at the *end* of links, with room for *capacity* chunks; None: for all."""
        return self._tiers.setdefault((end, round(chunk_bytes)), SecondaryTier(kind, end, capacity))

    def pool(self, model: str, block_tokens: int, chunk_bytes: float, nodes: Sequence[int],
             given: Callable[[int], float], seed: int) -> MooncakePool:
        """The pool of engines of one *model* with equal blocks; GPUs on these *nodes* add the bytes *given* by so many.
        """
        key = model, block_tokens, len(nodes), round(chunk_bytes)
        shared = self._pools.setdefault(key, MooncakePool(seed))
        for node, ranks in Counter(nodes).items():
            shared.add_segment(f"host{node}", int(given(ranks) // chunk_bytes))
        return shared


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
