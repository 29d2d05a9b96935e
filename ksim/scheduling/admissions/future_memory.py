"""A job starts when the predicted peak of all demand for KV cache would fit."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from math import ceil

from attrs import define, field
from attrs.validators import gt, le, optional

from ksim.kv.cache import Cache
from ksim.scheduling.job import Job, State

__all__ = ["FutureMemory"]


@define(eq=False)
class FutureMemory:
    """Demand grows by a token a step and job, and falls when one ends: its peak is at one of the predicted ends.

    Source: the past-future scheduler of LightLLM (Gong et al., ASPLOS 2025).
    Good for: larger batches than `reserve_output` has, with fewer that are preempted
    than with `always`.  An output is predicted as its true length times
    `reserve`; or, where a `quantile` between 0 and 1 is given, as that quantile
    of the latest `window` outputs, those that are longer than it is so far,
    times `reserve`, and before there are any, as its limit.  The peak is an
    upper bound: a last block counts as full, and shared ones for each job.

        admission = {name = "future_memory", quantile = 0.9, window = 1000}
    """

    reserve: float = field(default=1.0, validator=gt(0))
    quantile: float | None = field(default=None, validator=optional((gt(0), le(1))))
    window: int = field(default=1000, validator=gt(0))
    _outputs: deque[int] = field(init=False, repr=False)
    _seen: set[Job] = field(factory=set, init=False, repr=False)
    _sorted: list[int] = field(factory=list, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._outputs = deque(maxlen=self.window)

    def admits(self, job: Job, running: Sequence[Job], cache: Cache) -> bool:
        """One that is alone may always start: what can never fit has been refused before."""
        if self.quantile is not None:
            self._learn(running)
        return not running or self.peak([*running, job], cache.block_tokens) <= cache.capacity * cache.block_tokens

    def peak(self, jobs: Sequence[Job], block_tokens: int) -> int:
        """Tokens of KV cache that *jobs* take at most at once, from now to their ends."""
        full = block_tokens - 1
        ends = sorted(((self._left(job), job.num_tokens + job.num_output_placeholders + full) for job in jobs),
                      reverse=True)
        held = accumulate(tokens for _, tokens in ends)
        return max(tokens + left * (index + 1) for index, (tokens, (left, _)) in
                   enumerate(zip(held, ends, strict=True)))

    def _left(self, job: Job) -> int:
        """Tokens that *job* is thought to add to the cache yet; its last one is sampled, and not computed on."""
        output = job.output if self.quantile is None else self._usual(job)
        return max(ceil(output * self.reserve) - job.sampled - job.num_output_placeholders - 1, 0)

    def _usual(self, job: Job) -> int:
        """The quantile of those finished outputs that are longer than *job*'s is so far."""
        shorter = bisect_right(self._sorted, job.sampled)
        longer = len(self._sorted) - shorter
        if not longer:
            return job.limit
        index = shorter + max(ceil(float(self.quantile or 1) * longer) - 1, 0)
        return min(self._sorted[index], job.limit)

    def _learn(self, running: Sequence[Job]) -> None:
        """Note the outputs of those that ran at an earlier call and have ended since."""
        ended = [job for job in self._seen if job.state is State.DONE]
        self._seen.difference_update(ended)
        self._seen.update(running)
        if ended:
            self._outputs.extend(job.sampled for job in sorted(ended, key=lambda job: job.number))
            self._sorted = sorted(self._outputs)
