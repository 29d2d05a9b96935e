"""Shortest prompt first among those that wait."""

from attrs import frozen

from ksim.scheduling.job import Job

__all__ = ["ShortestPromptFirst"]


@frozen
class ShortestPromptFirst:
    """Lowers the mean time to first token under load, at the cost of long prompts."""

    def order(self, job: Job) -> tuple[int, float, int]:
        return job.known, job.request.arrival, job.number
