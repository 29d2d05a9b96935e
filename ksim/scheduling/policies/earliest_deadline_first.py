"""Earliest deadline of the first token first; the latest is preempted."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import ge, gt, le

from ksim.foundation.units import Seconds, quantity
from ksim.scheduling.job import Job

__all__ = ["EarliestDeadlineFirst"]

_MOST = 30


@frozen
class EarliestDeadlineFirst:
    """A request should have its first token `ttft` seconds after it came, and `per_token` more for each of its prompt.

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
