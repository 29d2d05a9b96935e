"""SGLang's HiCache: host memory behind the radix tree, written through or back, and storage behind that."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import field, frozen
from attrs.validators import ge, gt, in_, optional

from ksim.foundation.units import GIB, quantity
from ksim.kv.cache.evictions import Eviction
from ksim.kv.offload.connectors import OffloadParts, OffloadSettings, TierSettings
from ksim.kv.offload.hicache.cache import WRITE_POLICIES, HiCache
from ksim.kv.offload.hicache.connector import (
    POLICIES,
    HicacheConnector,
    PageStorage,
    PooledStorage,
    Prefetches,
    PrefetchRules,
    TierStorage,
)
from ksim.kv.offload.hicache.worker import HicacheWorker
from ksim.kv.offload.mooncake import MooncakePool
from ksim.kv.offload.store import SecondaryTier
from ksim.kv.offload.worker import OffloadWorker

__all__ = ["Hicache"]


#: SGLang's backends of storage, and where ksim has what they keep: on the disks of the node, in the fleet's storage, or
#: in the host memory that all ranks give to a pool.
BACKENDS = {"file": "disk", "hf3fs": "storage", "nixl": "storage", "aibrix": "storage", "eic": "storage",
            "mooncake": "pool"}
#: What hicache_storage_backend_extra_config says of prefetches.
_RULES = {"prefetch_threshold": "threshold", "prefetch_timeout_base": "base",
          "prefetch_timeout_per_ki_token": "per_ki_token", "prefetch_timeout_max": "most"}


@frozen(kw_only=True)
class Hicache(OffloadSettings):
    """`hicache_size` GB of host memory for each rank, or `hicache_ratio` times as much as there is for KV on the GPU.

    The keys are SGLang's flags (server_args.py) without their dashes; it needs `prefix_cache = "sglang"`.
    """

    alias: ClassVar[str] = "HiCache"
    size_key: ClassVar[str] = "hicache_size"
    prefix_cache: ClassVar[str] = "sglang"
    tiers_key: ClassVar[str] = "hicache_storage_backend"

    hicache_ratio: float = field(default=2.0, validator=gt(0))
    hicache_size: float = field(default=0.0, validator=ge(0))
    hicache_write_policy: str = field(default="write_through", validator=in_(tuple(WRITE_POLICIES)))
    #: How pages lie and are copied; ksim's copies reach what the links carry.
    hicache_io_backend: str = "kernel"
    hicache_mem_layout: str = "layer_first"
    hicache_storage_backend: str | None = field(default=None, validator=optional(in_(tuple(BACKENDS))))
    hicache_storage_prefetch_policy: str = field(default="timeout", validator=in_(POLICIES))
    #: What prefetches need, and how much host memory each rank gives to Mooncake; other keys say where storage is.
    hicache_storage_backend_extra_config: Mapping[str, Any] = field(factory=dict)
    #: Tokens of a page, in which storage keeps KV.
    page_size: int = field(default=1, validator=gt(0))

    def __attrs_post_init__(self) -> None:
        if self.hicache_storage_backend is None:
            given = "page_size" if self.page_size > 1 else "hicache_storage_backend_extra_config"
            if self.page_size > 1 or self.hicache_storage_backend_extra_config:
                raise ValueError(f"{given} is about storage, and hicache_storage_backend names none; name one of"
                                 f" {', '.join(BACKENDS)}, or leave out {given}: GPUs and host memory keep tokens one"
                                 " by one")
        _ = self.rules, self.pool_bytes(1)

    @property
    def rules(self) -> PrefetchRules:
        """When prefetches begin, and when requests no longer wait for them."""
        table = self.hicache_storage_backend_extra_config
        unknown = [key for key in table if key.startswith("prefetch") and key not in _RULES]
        if unknown:
            raise ValueError(f"hicache_storage_backend_extra_config has {unknown[0]!r}; SGLang knows"
                             f" {', '.join(_RULES)}")
        try:
            return PrefetchRules(policy=self.hicache_storage_prefetch_policy, **{
                name: table[key] for key, name in _RULES.items() if key in table})
        except (TypeError, ValueError) as error:
            raise ValueError(f"hicache_storage_backend_extra_config: {error}") from None

    @property
    def tiers(self) -> Sequence[TierSettings]:
        where = BACKENDS.get(self.hicache_storage_backend or "", "")
        return (TierSettings(where.replace("pool", "storage"), 1, 1),) if where else ()

    @property
    def pooled(self) -> bool:
        """Whether storage is the host memory that all ranks give to a pool."""
        return self.hicache_storage_backend == "mooncake"

    def cpu_bytes(self, ranks: int) -> float:
        return self.hicache_size * 1e9 * ranks

    def pool_bytes(self, ranks: int) -> float:
        """The bytes that so many *ranks* give to the pool; Mooncake's default is 4 GiB of each."""
        size = self.hicache_storage_backend_extra_config.get("global_segment_size", 4.0 * GIB)
        return quantity(size) * ranks if self.pooled else 0.0

    def pool(self, seed: int) -> MooncakePool:
        return MooncakePool(seed)

    def host_bytes(self, tokens: int, token_bytes: float, ranks: int) -> float:
        own = self.cpu_bytes(ranks) if self.hicache_size else self.hicache_ratio * tokens * token_bytes
        return own + self.pool_bytes(ranks)

    def key_tokens(self, block_tokens: int) -> int:
        return self.page_size

    def _host_tokens(self, device_tokens: int, token_bytes: float, ranks: int) -> int:
        """How many tokens of so many bytes on all ranks fit into host memory, beside *device_tokens* on the GPUs."""
        if self.hicache_size:
            return int(self.cpu_bytes(ranks) // token_bytes)
        return int(device_tokens * self.hicache_ratio)

    def cache(self, tokens: int, caching: bool, eviction: Eviction, token_bytes: float, ranks: int) -> HiCache:
        """A radix tree with room for so many tokens on the GPUs, and for some in host memory."""
        return HiCache(tokens, caching, eviction, host_capacity=self._host_tokens(tokens, token_bytes, ranks),
                       write_policy=self.hicache_write_policy)

    def blocks_of_chunk(self, block_tokens: int) -> int:
        return self.page_size  # a block is a token

    def chunks(self, parts: OffloadParts) -> int:
        return _cache(parts).host_capacity // self.page_size

    def connector(self, parts: OffloadParts, tiers: Sequence[SecondaryTier] = ()) -> HicacheConnector:
        cache = _cache(parts)
        if not self.tiers:
            return HicacheConnector(cache)
        storage: PageStorage = TierStorage(tiers[0]) if parts.pool is None else PooledStorage(parts.pool)
        return HicacheConnector(cache, prefetches=Prefetches(cache, storage, parts.keys, self.rules))

    def worker(self, connector: HicacheConnector, parts: OffloadParts, tiers: Mapping[SecondaryTier, TierSettings],
               chunk_bytes: float, common: Mapping[str, Any]) -> OffloadWorker:
        if connector.prefetches is None:
            return OffloadWorker(**common)
        return HicacheWorker(**common, connector=connector, prefetches=connector.prefetches, page_bytes=chunk_bytes,
                             host=parts.host)


def _cache(parts: OffloadParts) -> HiCache:
    assert isinstance(parts.cache, HiCache), "HiCache is its engine's cache"
    return parts.cache
