"""Offload connectors: where an engine keeps KV beyond its GPUs, in which chunks, and which chunks make room.

To add one, add a file with an attrs class that answers what `OffloadSettings`
asks.  Fields of the class are the keys of `kv_connector_extra_config`.

A scenario may name a connector by its file or by the `alias` that its engine
has for it, such as "OffloadingConnector".
"""

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from ksim.flow.request import BlockKeys
from ksim.kv.cache import Cache
from ksim.kv.offload.mooncake import MooncakePool
from ksim.kv.offload.store import SecondaryTier
from ksim.scheduling.connector import Connector

__all__ = ["OffloadParts", "OffloadSettings", "TierSettings"]


@frozen
class OffloadParts:
    """What a connector must know of its engine: the `keys` of its KV blocks, the bytes of one on all GPUs that store
    theirs, how many `ranks` these are, the `pool` that engines share, if the connector has one, and the engine's own
    `cache`."""

    keys: BlockKeys
    block_bytes: float
    prefix_caching: bool = True
    ranks: int = 1
    pool: MooncakePool | None = None
    cache: Cache | None = None


@frozen
class TierSettings:
    """A tier behind host memory: "disk" or "storage", and how many threads read from it first, or write to it first."""

    tier: str
    read_threads: int
    write_threads: int


class OffloadSettings(Protocol):
    """The settings of a connector that offloads KV to host memory."""

    @property
    def alias(self) -> str:
        """The engine's own name for it."""
        ...

    def cpu_bytes(self, ranks: int) -> float:
        """The bytes of host memory that an engine with so many GPUs takes."""
        ...

    @property
    def tiers(self) -> Sequence[TierSettings]:
        """The tiers behind host memory, which are looked up in this order."""
        ...

    def blocks_of_chunk(self, block_tokens: int) -> int:
        """How many KV blocks of so many tokens a chunk has; raises ValueError, which names the key, where they do not
        divide it."""
        ...

    def chunks(self, parts: OffloadParts) -> int:
        """How many chunks fit into host memory."""
        ...

    def connector(self, parts: OffloadParts, tiers: Sequence[SecondaryTier] = ()) -> Connector:
        """The scheduler's side of the connector: a TieredConnector where there are *tiers* behind host memory."""
        ...
