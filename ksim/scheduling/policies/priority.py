"""By priority, smaller numbers first, then by arrival; the least urgent is preempted."""

from collections.abc import Sequence

from attrs import frozen

from ksim.scheduling.job import Job

__all__ = ["Priority"]


@frozen
class Priority:
    """vLLM's ``--scheduling-policy priority``: only the queue and the victim heed it, not the order of a batch.

    Source: vLLM's V1 scheduler (2025).  Good for: traffic whose classes are
    known, such as chat beside batch jobs; the least urgent may wait for ever
    while more urgent ones keep coming.  The priority is the request's.  Two of
    equal priority that arrived at the very same time could take each other's
    blocks for ever: it relies on engines not letting that happen.

        scheduling_policy = "priority"
    """

    def order(self, job: Job) -> tuple[int, float, int]:
        return job.request.priority, job.arrived, job.number

    def victim(self, running: Sequence[Job]) -> Job:
        return max(running, key=lambda job: (job.request.priority, job.arrived))
