"""Policies that order the queue by one number of each request."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import ge, gt, le

from ksim.foundation.units import Seconds, quantity
from ksim.scheduling.job import Job

__all__ = ["Fcfs", "Priority", "EarliestDeadlineFirst", "ShortestPromptFirst", "ShortestRemaining"]


@frozen
class Fcfs:
    """First come, first served: running jobs in order of admission, then waiting ones in order of arrival.

    vLLM's default: who came first goes on first, and the last admitted is preempted.

    Source: vLLM's V1 scheduler (2025).  Good for: the baseline; nobody waits
    for ever, but one long prompt delays everyone behind it.  It has no members:
    what a policy lacks is as here.

        scheduling_policy = "fcfs"
    """


@frozen
class Priority:
    """By priority, smaller numbers first, then by arrival; the least urgent is preempted.

    vLLM's ``--scheduling-policy priority``: only the queue and the victim heed it, not the order of a batch.

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


_MOST = 30


@frozen
class EarliestDeadlineFirst:
    """Earliest deadline of the first token first; the latest is preempted.

    A request should have its first token `ttft` seconds after it came, and `per_token` more for each of its prompt.

    Source: Liu and Layland (1973): on one processor it meets all deadlines if
    any order does; as in SLO-aware serving, long prompts get more time.
    Good for: the share of requests within their SLO, up to the load at which
    all fall behind: a deadline that is missed still comes first.  Each step of
    priority multiplies the time that a request has by `scale`, so that smaller
    numbers are more urgent.

        scheduling_policy = {name = "earliest_deadline_first", ttft = "500 ms", per_token = "0.2 ms", scale = 2.0}
    """

    ttft: Seconds = field(default=0.5, converter=quantity, validator=gt(0))
    per_token: Seconds = field(default=0.0002, converter=quantity, validator=ge(0))
    scale: float = field(default=2.0, validator=(ge(1), le(1000)))

    def order(self, job: Job) -> tuple[float, int]:
        return self.deadline(job), job.number

    def victim(self, running: Sequence[Job]) -> Job:
        return max(running, key=self.order)

    def deadline(self, job: Job) -> float:
        """When the first token of *job* should be out, in seconds."""
        request = job.request
        steps = max(-_MOST, min(request.priority, _MOST))  # a power beyond is as good as never, or at once
        return request.arrival + (self.ttft + self.per_token * request.prompt) * self.scale**steps


@frozen
class ShortestPromptFirst:
    """Shortest prompt first among those that wait.

    The waiting queue by the tokens that a job has to compute before its next one.

    Source: shortest job first, with the one length that is known at arrival.
    Good for: a low mean time to first token under load, at the cost of long
    prompts, which may wait for ever.

        scheduling_policy = "shortest_prompt_first"
    """

    def order(self, job: Job) -> tuple[int, float, int]:
        return job.num_tokens, job.request.arrival, job.number


@frozen
class ShortestRemaining:
    """Shortest remaining work first among those that wait; who has most left is preempted.

    SRPT by an oracle: the work left is the tokens of prompt and output that are not computed yet.

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
