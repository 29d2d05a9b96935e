"""Stall-free batches: all decodes, and as many tokens of prompts as a budget leaves."""

from collections.abc import Iterator, Sequence
from itertools import chain

from attrs import field, frozen
from attrs.validators import gt

from ksim.scheduling.job import Job
from ksim.scheduling.policies import Waiting, Wish, granted

__all__ = ["StallFree"]


@frozen
class StallFree:
    """Each decode is in each step; prompts, running ones first, fill the step up to `budget` tokens.

    Source: Sarathi-Serve (Agrawal et al., OSDI 2024), algorithm 3.  Good for:
    an inter-token latency that does not depend on who arrives: `budget`, in
    tokens a step, is chosen so that a full step just keeps the target.  Where
    there are more decodes than that, prompts wait.

        scheduling_policy = {name = "stall_free", budget = 512}
    """

    budget: int = field(default=512, validator=gt(0))

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        prompts, left = [], self.budget
        for job in running:
            if job.backlog > 1:
                prompts.append(job)
                continue
            before, tokens = job.step, 1 + job.drafts
            yield job, 1
            left -= tokens * granted(job, before)
        for job in chain(prompts, waiting):
            if left <= 0:
                return
            before = job.step
            yield job, left
            if granted(job, before):
                left -= min(left, job.backlog)  # one just admitted need not compute what the prefix cache had
