"""Shortest remaining work first among those that wait; who has most left is preempted."""

from collections.abc import Sequence

from attrs import frozen

from ksim.scheduling.job import Job

__all__ = ["ShortestRemaining"]


@frozen
class ShortestRemaining:
    """SRPT by an oracle: the work left is the tokens of prompt and output that are not computed yet.

    Source: Schrage (1968): no order has a lower mean time in a queue with one
    server.  Good for: the bound that a policy with predictions is measured
    against (see `srpt_predicted`); long requests may wait for ever.  A running
    job is preempted only when the KV cache is full, and then the one that has most
    left does; what it had computed counts as work again.

        scheduling_policy = "shortest_remaining"
    """

    def order(self, job: Job) -> tuple[int, float, int]:
        return remaining(job), job.request.arrival, job.number

    def victim(self, running: Sequence[Job]) -> Job:
        return max(running, key=self.order)


def remaining(job: Job) -> int:
    """Tokens of prompt and output that *job* has yet to compute."""
    return job.request.prompt + job.output - job.num_computed_tokens
