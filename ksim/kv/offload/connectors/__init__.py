"""Offload connectors: where an engine keeps KV beyond its GPUs, in which chunks, and which chunks make room.

To add one, add a file with an attrs class, an `OffloadSettings`, whose fields
are the keys of `kv_connector_extra_config`.  It makes both sides of the
connector, and may bring a worker, a pool or a cache of its own.

A scenario may name a connector by its file or by the `alias` that its engine
has for it, such as "OffloadingConnector".
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import frozen

from ksim.flow.request import BlockKeys
from ksim.kv.cache import Cache
from ksim.kv.cache.evictions import Eviction
from ksim.kv.offload.store import SecondaryTier
from ksim.kv.offload.worker import OffloadWorker
from ksim.scheduling.connector import Connector

__all__ = ["OffloadParts", "OffloadSettings", "TierSettings"]


@frozen
class OffloadParts:
    """What a connector must know of its engine: the `keys` of its KV blocks, the bytes of one on all GPUs that store
    theirs, how many `ranks` these are, the `pool` that engines share, if the connector has one, the engine's own
    `cache`, and what the links call the memory of its node."""

    keys: BlockKeys
    block_bytes: float
    prefix_caching: bool = True
    ranks: int = 1
    pool: Any = None
    cache: Cache | None = None
    host: str = "host0"


@frozen
class TierSettings:
    """A tier behind host memory: "disk" or "storage", and how many threads read from it first, or write to it first."""

    tier: str
    read_threads: int
    write_threads: int


class OffloadSettings:
    """The settings of a connector that offloads KV to host memory; a class of its own may leave out what is here."""

    #: The engine's own name for the connector.
    alias: ClassVar[str]
    #: Whose prefix cache it goes with: "vllm" or "sglang".
    prefix_cache: ClassVar[str] = "vllm"
    #: The key of `kv_connector_extra_config` that names tiers behind host memory.
    tiers_key: ClassVar[str] = "secondary_tiers"

    @property
    def tiers(self) -> Sequence[TierSettings]:
        """The tiers behind host memory, which are looked up in this order."""
        return ()

    @property
    def pooled(self) -> bool:
        """Whether engines of one model share what any of them has stored, in a pool of host memory."""
        return False

    def pool(self, seed: int) -> Any:
        """A new pool, without any memory; only settings that are `pooled` have one."""
        raise NotImplementedError

    def pool_bytes(self, ranks: int) -> float:
        """The bytes of host memory that an engine with so many GPUs gives to the pool."""
        return 0.0

    def cpu_bytes(self, ranks: int) -> float:
        """The bytes of host memory that an engine with so many GPUs takes."""
        raise NotImplementedError

    def host_bytes(self, tokens: int, token_bytes: float, ranks: int) -> float:
        """The same with the pool's, beside a cache of *tokens* on the GPUs, each of so many bytes on all of them."""
        return self.cpu_bytes(ranks)

    def key_tokens(self, block_tokens: int) -> int:
        """The tokens that a key of the connector stands for: those of a block of so many, by default."""
        return block_tokens

    def blocks_of_chunk(self, block_tokens: int) -> int:
        """How many KV blocks of so many tokens a chunk has; raises ValueError, which names the key, where they do not
        divide it."""
        raise NotImplementedError

    def chunks(self, parts: OffloadParts) -> int:
        """How many chunks fit into host memory."""
        raise NotImplementedError

    def cache(self, tokens: int, caching: bool, eviction: Eviction, token_bytes: float, ranks: int) -> Cache | None:
        """A cache of so many *tokens* on the GPUs that knows of host memory; None for the engine's usual one."""
        return None

    def connector(self, parts: OffloadParts, tiers: Sequence[SecondaryTier] = ()) -> Connector:
        """The scheduler's side of the connector, with *tiers* behind host memory."""
        raise NotImplementedError

    def worker(self, connector: Any, parts: OffloadParts, tiers: Mapping[SecondaryTier, TierSettings],
               chunk_bytes: float, common: Mapping[str, Any]) -> OffloadWorker:
        """The workers' side of *connector*, which copies chunks of so many bytes to its *tiers*.

        It takes what all workers have in *common*, the fields of an `OffloadWorker`.
        """
        return OffloadWorker(**common)
