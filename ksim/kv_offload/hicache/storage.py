"""What storage behind host memory has: pages of KV, on the disks of a node, in a storage, or in all nodes' memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import define, field

from ksim.kv_offload.evictions import RequestAccess
from ksim.kv_offload.mooncake.pool import MooncakePool
from ksim.kv_offload.tiers import SecondaryTier
from ksim.scheduling.job import Job

__all__ = ["BATCH", "PooledStorage", "Storage", "StorageJob", "TierStorage"]

#: How many pages are read or written at once (SGLang's STORAGE_BATCH_SIZE).
BATCH = 128


@define(eq=False)
class StorageJob:
    """Pages of a request on their way from storage to host memory, if it `reads`, or from there to storage.

    They move batch by batch; `moved` counts the pages that the scheduler knows to have arrived.  A job that is
    `stopped` ends after the batch under way.
    """

    job: Job
    keys: Sequence[int]
    reads: bool
    moved: int = 0
    stopped: bool = False
    over: bool = False


class Storage(Protocol):
    """Pages of KV by their keys, which engines share.

    Pages lie at ends of links, such as "disk0" or "host1".
    """

    @property
    def name(self) -> str:
        """The name of the tier in results."""
        ...

    def leading(self, keys: Sequence[int]) -> int:
        """How many of *keys*, from the first on, are there."""
        ...

    def begin_read(self, keys: Sequence[int]) -> Mapping[str, int]:
        """Pages that are there begin to be read: how many come from which end."""
        ...

    def end_read(self, keys: Sequence[int]) -> None:
        """Pages have been read."""
        ...

    def begin_write(self, keys: Sequence[int]) -> tuple[Sequence[int], Mapping[str, int]]:
        """Pages begin to be written: those that were not there, and how many go to which end."""
        ...

    def end_write(self, keys: Sequence[int]) -> None:
        """Pages that were not there have been written."""
        ...


@define(eq=False)
class TierStorage:
    """Pages on the disks of a node, or in the storage of a fleet: those of `tier`."""

    tier: SecondaryTier

    @property
    def name(self) -> str:
        return self.tier.name

    def leading(self, keys: Sequence[int]) -> int:
        return next((place for place, key in enumerate(keys) if key not in self.tier), len(keys))

    def begin_read(self, keys: Sequence[int]) -> Mapping[str, int]:
        self.tier.touch(keys)
        return {self.tier.end: len(keys)}

    def end_read(self, keys: Sequence[int]) -> None:
        """Do nothing: files that are being read may be forgotten."""

    def begin_write(self, keys: Sequence[int]) -> tuple[Sequence[int], Mapping[str, int]]:
        absent = [key for key in keys if key not in self.tier]
        return absent, {self.tier.end: len(absent)} if absent else {}

    def end_write(self, keys: Sequence[int]) -> None:
        self.tier.add(keys)


@define(eq=False)
class PooledStorage:
    """Pages in Mooncake's store: the host memory that all nodes give to `pool`."""

    pool: MooncakePool
    name: str = "storage"
    _access: RequestAccess = field(factory=RequestAccess, init=False)

    def leading(self, keys: Sequence[int]) -> int:
        return self.pool.leading(keys)[0]

    def begin_read(self, keys: Sequence[int]) -> Mapping[str, int]:
        self.pool.renew(keys)
        self.pool.pin(keys, self._access, 0)
        return self.pool.hosts(keys)

    def end_read(self, keys: Sequence[int]) -> None:
        self.pool.unpin(keys)

    def begin_write(self, keys: Sequence[int]) -> tuple[Sequence[int], Mapping[str, int]]:
        taken = self.pool.offer(keys, self._access, 0)
        return taken, Counter(self.pool.hosts(taken))

    def end_write(self, keys: Sequence[int]) -> None:
        self.pool.arrived(keys)
