"""MooncakeStoreConnector, scheduler side: blocks that any engine stored are found by all."""

from collections.abc import Mapping
from typing import Any

from attrs import define

from ksim.flow.request import Request
from ksim.kv_offload.connector import OffloadConnector
from ksim.kv_offload.mooncake.pool import MooncakePool
from ksim.scheduling.connector import Contents
from ksim.scheduling.copies import Load
from ksim.scheduling.job import Job

__all__ = ["MooncakeConnector"]


@define(eq=False)
class MooncakeConnector(OffloadConnector):
    """Looks a prompt up from its first block on, so a block that the pool lacks ends the hit, though the GPU has it.

    All else is as with host memory: loads are asynchronous, and blocks of prompts are stored once they are full.
    Nobody waits for blocks that are on their way to the pool, nor for those that another request loads.
    """

    @property
    def _pool(self) -> MooncakePool:
        pool: Any = self.store  # it answers what a ChunkStore is asked
        assert isinstance(pool, MooncakePool), "engines of a fleet share a pool"
        return pool

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        tokens, _ = super().external_tokens(job, computed)
        if tokens is None or not job.reads_cache:
            return tokens, True
        keys = self._of(job).keys[:job.num_tokens // self.keys.block_tokens]
        hits, _ = self._pool.leading(keys)
        self._pool.renew(keys[:hits])
        return max(0, hits * self.keys.block_tokens - computed), True

    def begin(self, load: Load) -> None:
        super().begin(load)
        self._loading.clear()  # nobody waits for what others load

    def tier_hits(self, request: Request, cached: int, contents: Contents | None = None) -> Mapping[str, int]:
        block, pool = self.keys.block_tokens, (self.contents if contents is None else contents)["cpu"]
        keys = self.keys.of(request)[:request.prompt // block]
        tokens = next((place for place, key in enumerate(keys) if key not in pool), len(keys)) * block
        return {"cpu": tokens - cached} if tokens > cached else {}
