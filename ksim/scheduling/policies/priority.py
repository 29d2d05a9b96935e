"""By priority, smaller numbers first, then by arrival; the least urgent gives way."""

from collections.abc import Sequence

from attrs import frozen

from ksim.scheduling.job import Job

__all__ = ["Priority"]


@frozen
class Priority:
    """vLLM's ``--scheduling-policy priority``: only the queue and the victim heed it, not the order of a batch."""

    def order(self, job: Job) -> tuple[int, float, int]:
        return job.request.priority, job.request.arrival, job.number

    def victim(self, running: Sequence[Job]) -> Job:
        return max(running, key=lambda job: (job.request.priority, job.request.arrival))
