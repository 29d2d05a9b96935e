"""MooncakeStoreConnector: a pool of host memory that the engines of a fleet share."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import field, frozen
from attrs.validators import gt, in_

from ksim.foundation.units import GIB, quantity
from ksim.kv.offload.connectors import OffloadParts, OffloadSettings, TierSettings
from ksim.kv.offload.mooncake import MooncakeConnector, MooncakePool, MooncakeWorker
from ksim.kv.offload.store import SecondaryTier
from ksim.kv.offload.worker import OffloadWorker

__all__ = ["MooncakeStore"]


#: Keys of Mooncake's configuration that change no time: addresses, and buffers that the simulation does not need.
_WITHOUT_EFFECT = {"metadata_server", "master_server_address", "local_hostname", "local_buffer_size", "protocol",
                   "device_name", "mode", "lookup_rpc_port", "tenant_id", "enable_group_semantics", "cluster_id"}


@frozen(kw_only=True)
class MooncakeStore(OffloadSettings):
    """Each rank gives `global_segment_size` bytes of its node's memory to the pool.

    vLLM's keys of `kv_connector_extra_config`, and those of the file that MOONCAKE_CONFIG_PATH names.
    """

    alias: ClassVar[str] = "MooncakeStoreConnector"

    global_segment_size: float = field(default=4.0 * GIB, converter=quantity, validator=gt(0))
    load_async: bool = field(default=True, validator=in_((True,)))
    lookup_async: bool = field(default=False, validator=in_((False,)))
    enable_lookup: bool = field(default=True, validator=in_((True,)))
    save_decode_cache: bool = False

    @classmethod
    def options(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """The options in *table*, as a deployment has it, that change anything."""
        return {name: value for name, value in table.items() if name not in _WITHOUT_EFFECT}

    @property
    def pooled(self) -> bool:
        return True

    def pool(self, seed: int) -> MooncakePool:
        return MooncakePool(seed)

    def cpu_bytes(self, ranks: int) -> float:
        return self.global_segment_size * ranks

    def pool_bytes(self, ranks: int) -> float:
        return self.cpu_bytes(ranks)

    def blocks_of_chunk(self, block_tokens: int) -> int:
        return 1

    def chunks(self, parts: OffloadParts) -> int:
        return int(self.cpu_bytes(parts.ranks) // parts.block_bytes)

    def connector(self, parts: OffloadParts, tiers: Sequence[SecondaryTier] = ()) -> MooncakeConnector:
        assert parts.pool is not None, "engines of a fleet share a pool"
        store: Any = parts.pool  # it answers what a ChunkStore is asked
        return MooncakeConnector(store, parts.keys, 1, not self.save_decode_cache, parts.prefix_caching)

    def worker(self, connector: MooncakeConnector, parts: OffloadParts, tiers: Mapping[SecondaryTier, TierSettings],
               chunk_bytes: float, common: Mapping[str, Any]) -> OffloadWorker:
        assert parts.pool is not None, "engines of a fleet share a pool"
        return MooncakeWorker(**common, pool=parts.pool)
