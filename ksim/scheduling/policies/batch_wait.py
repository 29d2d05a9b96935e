"""Decodes first, and prompts only when there are enough of them, or have been waiting long enough."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from attrs import define, field
from attrs.validators import ge, gt, le

from ksim.scheduling.job import Job
from ksim.scheduling.policies import ALL, Waiting, Wish

__all__ = ["BatchWait"]


@define(eq=False)
class BatchWait:
    """While others decode, prompts wait for a step of `ratio` x `budget` tokens, but for `iterations` steps at most.

    Source: TensorRT-LLM's batch_wait_max_tokens_ratio and batch_wait_timeout_iters
    (_torch/pyexecutor/py_executor.py, _waiting_requests); `budget` is its
    max_num_tokens.  Good for: throughput under many small prompts, as fewer steps
    are slowed down by one; each prompt pays with up to `iterations` decodes.

        scheduling_policy = {name = "batch_wait", budget = 8192, ratio = 0.9, iterations = 20}
    """

    budget: int = field(default=8192, validator=gt(0))
    ratio: float = field(default=0.9, validator=(ge(0), le(1)))
    iterations: int = field(default=20, validator=ge(0))
    _waited: int = field(default=0, init=False)

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        decodes = [job for job in running if job.backlog == 1]
        prompts = [*(job for job in running if job.backlog > 1), *waiting]
        yield from ((job, ALL) for job in decodes)
        if prompts and decodes and self._waited < self.iterations and not self._fill(decodes, prompts):
            self._waited += 1
        elif prompts:
            self._waited = 0
            yield from ((job, ALL) for job in prompts)

    def _fill(self, decodes: Iterable[Job], prompts: Iterable[Job]) -> bool:
        """Whether *prompts* beside *decodes* are enough tokens for a step."""
        return sum(job.backlog + job.drafts for job in chain(decodes, prompts)) >= self.ratio * self.budget
