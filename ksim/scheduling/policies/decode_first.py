"""Decodes before all prefills, which share what budget is left."""

from collections.abc import Iterator, Sequence

from attrs import frozen

from ksim.scheduling.job import Job
from ksim.scheduling.policies import ALL, Waiting, Wish

__all__ = ["DecodeFirst"]


@frozen
class DecodeFirst:
    """No running prefill delays a decode, as in Sarathi-Serve; `chunk` caps a prompt's tokens in a step."""

    chunk: int = ALL

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        yield from ((job, 1) for job in running if job.backlog == 1)
        yield from ((job, self.chunk) for job in running if job.backlog > 1)
        yield from ((job, self.chunk) for job in waiting)
