"""Whoever has a sequence slot, tokens and blocks to begin with may start."""

from collections.abc import Sequence

from attrs import frozen

from ksim.kv.cache import Cache
from ksim.scheduling.job import Job

__all__ = ["Always"]


@frozen
class Always:
    """vLLM's V1 scheduler (2025): jobs whose KV cache grows too large are preempted later.

    Good for: full batches while memory is ample; where it is not, each job that is
    preempted computes its tokens again.

        admission = "always"
    """

    def admits(self, job: Job, running: Sequence[Job], cache: Cache) -> bool:
        return True
