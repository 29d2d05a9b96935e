"""A job starts when the longest outputs of all would fit."""

from collections.abc import Sequence

from attrs import frozen

from ksim.kv.cache import Cache
from ksim.scheduling.job import Job

__all__ = ["ReserveOutput"]


@frozen
class ReserveOutput:
    """Memory for prompt and output limit is set aside from the start, so that nobody ever is preempted.

    Source: Orca (Yu et al., OSDI 2022).  Good for: the classic baseline, and
    for tails without recomputation; batches are the smaller, the more outputs
    fall short of their limits.  Blocks that jobs share are counted for each.

        admission = "reserve_output"
    """

    def admits(self, job: Job, running: Sequence[Job], cache: Cache) -> bool:
        """One that is alone may always start: what can never fit has been refused before."""
        return not running or sum(_blocks(each, cache) for each in (*running, job)) <= cache.capacity


def _blocks(job: Job, cache: Cache) -> int:
    """Blocks that *job* needs at most; its last token is sampled, and not computed on."""
    return cache.blocks(job.request.prompt + job.limit - 1)
