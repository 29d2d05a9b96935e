"""SGLang's HiCache: host memory behind the radix tree, written through or back, loaded before prompts are computed."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge, gt, in_

from ksim.kv_offload.connectors import OffloadParts, TierSettings
from ksim.kv_offload.hicache import WRITE_POLICIES, HiCache
from ksim.kv_offload.hicache_connector import HicacheConnector
from ksim.kv_offload.tiers import SecondaryTier

__all__ = ["Hicache"]


@frozen(kw_only=True)
class Hicache:
    """`hicache_size` GB of host memory for each rank, or `hicache_ratio` times as much as there is for KV on the GPU.

    The keys are SGLang's flags (server_args.py) without their dashes; it needs `prefix_cache = "sglang"`.
    """

    alias: ClassVar[str] = "HiCache"
    size_key: ClassVar[str] = "hicache_size"

    hicache_ratio: float = field(default=2.0, validator=gt(0))
    hicache_size: float = field(default=0.0, validator=ge(0))
    hicache_write_policy: str = field(default="write_through", validator=in_(tuple(WRITE_POLICIES)))
    #: How pages lie and are copied; ksim's copies reach what the links carry.
    hicache_io_backend: str = "kernel"
    hicache_mem_layout: str = "layer_first"
    #: Storage behind host memory is not simulated.
    hicache_storage_backend: str | None = field(default=None, validator=in_((None,)))

    @property
    def tiers(self) -> Sequence[TierSettings]:
        return ()

    def cpu_bytes(self, ranks: int) -> float:
        return self.hicache_size * 1e9 * ranks

    def host_tokens(self, device_tokens: int, token_bytes: float, ranks: int) -> int:
        """How many tokens of so many bytes on all ranks fit into host memory, beside *device_tokens* on the GPUs."""
        if self.hicache_size:
            return int(self.cpu_bytes(ranks) // token_bytes)
        return int(device_tokens * self.hicache_ratio)

    def blocks_of_chunk(self, block_tokens: int) -> int:
        return 1

    def chunks(self, parts: OffloadParts) -> int:
        return _cache(parts).host_capacity

    def connector(self, parts: OffloadParts, tiers: Sequence[SecondaryTier] = ()) -> HicacheConnector:
        return HicacheConnector(_cache(parts))


def _cache(parts: OffloadParts) -> HiCache:
    assert isinstance(parts.cache, HiCache), "HiCache is its engine's cache"
    return parts.cache
