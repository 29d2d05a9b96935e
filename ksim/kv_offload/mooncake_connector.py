"""MooncakeStoreConnector, scheduler side: blocks that any engine stored are found by all."""

from attrs import define

from ksim.kv_offload.connector import OffloadConnector
from ksim.scheduling.job import Job

__all__ = ["MooncakeConnector"]


@define(eq=False)
class MooncakeConnector(OffloadConnector):
    """Looks a prompt up from its first block on, so a block that the pool lacks ends the hit, though the GPU has it.

    All else is as with host memory: loads are asynchronous, and blocks of prompts are stored once they are full.
    Nobody waits for blocks that are on their way to the pool, nor for those that another request loads.
    """

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        tokens, _ = super().external_tokens(job, computed)
        if tokens is None or not job.reads_cache:
            return tokens, True
        hits, _ = self.store.leading(self._of(job).keys[:job.num_tokens // self.keys.block_tokens])
        return max(0, hits * self.keys.block_tokens - computed), True
