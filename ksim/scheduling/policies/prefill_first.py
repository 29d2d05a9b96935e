"""Prompts first: a step decodes only if it has no prompt to compute."""

from collections.abc import Iterator, Sequence
from itertools import chain

from attrs import frozen

from ksim.scheduling.job import Job
from ksim.scheduling.policies import ALL, Waiting, Wish, granted

__all__ = ["PrefillFirst"]


@frozen
class PrefillFirst:
    """Steps of prompts alone, running ones before waiting ones, or of decodes alone.

    Source: vLLM's V0 scheduler (Kwon et al., SOSP 2023) without chunked
    prefill.  Good for: the time to first token; each arrival stalls all
    decodes, which the tail of the inter-token latency shows.  Whole prompts, as
    V0 had them, take ``enable_chunked_prefill = false``.

        scheduling_policy = "prefill_first"
    """

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        prompts, idle = [job for job in running if job.backlog > 1], True
        for job in chain(prompts, waiting):
            before = job.step
            yield job, ALL
            idle = idle and not granted(job, before)
        if idle:
            yield from ((job, ALL) for job in running if job not in prompts)
