"""vLLM's OffloadingConnector: KV in host memory, and in tiers behind it."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import field, frozen
from attrs.validators import ge, gt, in_, optional

from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.units import quantity
from ksim.kv.offload.connector import OffloadConnector
from ksim.kv.offload.connectors import OffloadParts, OffloadSettings, TierSettings
from ksim.kv.offload.store import COUNTED, ChunkStore, OfferCounts, SecondaryTier, TierThreads
from ksim.kv.offload.tiered import TieredConnector, TieredWorker
from ksim.kv.offload.worker import OffloadWorker

__all__ = ["Offloading"]


#: What a chunk's bytes in host memory are rounded up to: a page of memory.
ALIGNMENT = 4096
#: The specs of vLLM that ksim knows: host memory alone, or with tiers behind it.
SPECS = ("CPUOffloadingSpec", "TieringOffloadingSpec")
#: vLLM's types of tiers behind host memory, and where they are: on the disks of the node, or in the fleet's storage.
TIERS = {"fs": "disk", "obj": "storage"}


@frozen(kw_only=True)
class Offloading(OffloadSettings):
    """`cpu_bytes_to_use` bytes of host memory for one engine, all its ranks together, in chunks of whole KV blocks.

    The keys are those of vLLM 0.33 (v1/kv_offload and kv_connector/v1/offloading/config.py).  A chunk is `block_size`
    tokens or `blocks_per_chunk` blocks, by default one block.
    """

    alias: ClassVar[str] = "OffloadingConnector"

    cpu_bytes_to_use: float = field(converter=quantity, validator=gt(0))
    block_size: int | None = field(default=None, validator=optional(gt(0)))
    blocks_per_chunk: int | None = field(default=None, validator=optional(gt(0)))
    eviction_policy: str = "lru"
    store_threshold: int = field(default=0, validator=ge(0))
    max_tracker_size: int = field(default=COUNTED, validator=gt(0))
    offload_prompt_only: bool = True
    spec_name: str = field(default=SPECS[0], validator=in_(SPECS))
    secondary_tiers: tuple[Mapping[str, Any], ...] = ()
    #: vLLM loads up to so many bytes within a step; ksim loads all beside the steps.
    sync_load_budget_bytes: int = field(default=0, validator=in_((0,)))
    #: Of no effect on times: how vLLM is built.
    tier_poll_interval_s: float = 0.001
    self_describing_kv_events: bool = False
    canonical_layout: bool = False

    def __attrs_post_init__(self) -> None:
        if self.block_size is not None and self.blocks_per_chunk is not None:
            raise ValueError("block_size and blocks_per_chunk both say how large a chunk is; leave one out")
        if self.secondary_tiers and self.spec_name != "TieringOffloadingSpec":
            raise ValueError("secondary_tiers needs spec_name = 'TieringOffloadingSpec', as in vLLM")
        if self.spec_name == "TieringOffloadingSpec" and self.store_threshold >= 2:
            raise ValueError(f"store_threshold = {self.store_threshold} is not possible with TieringOffloadingSpec;"
                             " leave it out, as vLLM asks")
        _ = self.tiers

    def cpu_bytes(self, ranks: int) -> float:
        return self.cpu_bytes_to_use

    @property
    def tiers(self) -> Sequence[TierSettings]:
        return [_tier(table) for table in self.secondary_tiers]

    def blocks_of_chunk(self, block_tokens: int) -> int:
        if self.block_size is None:
            return self.blocks_per_chunk or 1
        if self.block_size % block_tokens:
            raise ValueError(f"block_size = {self.block_size} is no multiple of the KV cache's blocks of {block_tokens}"
                             f" tokens; set {-(-self.block_size // block_tokens) * block_tokens}, or blocks_per_chunk")
        return self.block_size // block_tokens

    def chunks(self, parts: OffloadParts) -> int:
        size = parts.block_bytes * self.blocks_of_chunk(parts.keys.block_tokens)
        return int(self.cpu_bytes_to_use // (-(-size // ALIGNMENT) * ALIGNMENT))

    def connector(self, parts: OffloadParts, tiers: Sequence[SecondaryTier] = ()) -> OffloadConnector:
        capacity = self.chunks(parts)
        eviction = plugin("kv.offload.evictions", Choice(self.eviction_policy, {"capacity": capacity}))
        counts = OfferCounts(self.store_threshold, self.max_tracker_size) if self.store_threshold >= 2 else None
        said = (ChunkStore(capacity, eviction, counts), parts.keys, self.blocks_of_chunk(parts.keys.block_tokens),
                self.offload_prompt_only, parts.prefix_caching)
        return TieredConnector(*said, tiers=tiers) if tiers else OffloadConnector(*said)

    def worker(self, connector: Any, parts: OffloadParts, tiers: Mapping[SecondaryTier, TierSettings],
               chunk_bytes: float, common: Mapping[str, Any]) -> OffloadWorker:
        if not tiers:
            return OffloadWorker(**common)
        return TieredWorker(**common, connector=connector, threads={
            tier: TierThreads(network=common["network"], host=parts.host, chunk_bytes=chunk_bytes,
                              read=settings.read_threads, write=settings.write_threads)
            for tier, settings in tiers.items()})


def _tier(table: Mapping[str, Any]) -> TierSettings:
    """A tier as vLLM's `secondary_tiers` has it; keys that say where files are change nothing."""
    kind = table.get("type")
    if kind not in TIERS:
        raise ValueError(f"secondary_tiers has the type {kind!r}; ksim knows {', '.join(TIERS)}")
    tier = "storage" if table.get("locality") == "REMOTE" else TIERS[kind]
    threads = [table.get(key, 16) for key in ("n_read_threads", "n_write_threads")]
    if not all(isinstance(count, int) and count >= 0 for count in threads) or not sum(threads):
        raise ValueError("secondary_tiers needs whole numbers n_read_threads and n_write_threads, not both 0")
    return TierSettings(tier, *threads)
