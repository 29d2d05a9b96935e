"""Iteration-level batches: after each step, those that ended leave and those that came first join."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from attrs import field, frozen
from attrs.validators import gt

from ksim.scheduling.job import Job
from ksim.scheduling.policies import ALL, Waiting, Wish

__all__ = ["Orca"]


@frozen
class Orca:
    """First come, first served, at most `batch` requests in progress.

    Source: Orca (Yu et al., OSDI 2022), algorithm 1.  Good for: the classic
    comparison, between request-level and paged.  Three settings make the rest
    of it: prompts are computed whole, each request has memory for its longest
    output set aside from the start, and nothing is shared.

        scheduling_policy = {name = "orca", batch = 32}
        admission = "reserve_output"
        enable_chunked_prefill = false
        enable_prefix_caching = false
    """

    batch: int = field(default=32, validator=gt(0))

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        return ((job, ALL) for job in chain(running, islice(waiting, max(0, self.batch - len(running)))))
