"""Decodes before all prefills, which share what budget is left."""

from collections.abc import Iterator, Sequence

from attrs import field, frozen
from attrs.validators import gt

from ksim.scheduling.job import Job
from ksim.scheduling.policies import ALL, Waiting, Wish

__all__ = ["DecodeFirst"]


@frozen
class DecodeFirst:
    """No running prefill takes a decode's place in a batch.

    Source: the order of Sarathi-Serve's batches (OSDI 2024), without its
    budget; see `stall_free` for that.  Good for: token budgets so small that
    chunks of prompts would crowd decodes out.  `chunk` is the most tokens of
    one prompt in a step.

        scheduling_policy = {name = "decode_first", chunk = 512}
    """

    chunk: int = field(default=ALL, validator=gt(0))

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        yield from ((job, 1) for job in running if job.backlog == 1)
        yield from ((job, self.chunk) for job in running if job.backlog > 1)
        yield from ((job, self.chunk) for job in waiting)
