"""Shortest prompt first among those that wait."""

from attrs import frozen

from ksim.scheduling.job import Job

__all__ = ["ShortestPromptFirst"]


@frozen
class ShortestPromptFirst:
    """The waiting queue by the tokens that a job has to compute before its next one.

    Source: shortest job first, with the one length that is known at arrival.
    Good for: a low mean time to first token under load, at the cost of long
    prompts, which may wait for ever.

        scheduling_policy = "shortest_prompt_first"
    """

    def order(self, job: Job) -> tuple[int, float, int]:
        return job.num_tokens, job.request.arrival, job.number
