"""Shortest predicted work first: SRPT that knows output lengths only roughly."""

from collections.abc import Sequence

import numpy as np
from attrs import define, field
from attrs.validators import ge

from ksim.foundation.rng import stream
from ksim.scheduling.job import Job

__all__ = ["SrptPredicted"]

_BLOCK = 1024


@define
class SrptPredicted:
    """`shortest_remaining` with each output length predicted: multiplied by a log-normal error of median 1.

    Source: schedulers that rank by a predicted length, such as TRAIL (Shahout
    et al., ICLR 2025) and learning to rank (Fu et al., NeurIPS 2024).  Good for:
    how good a predictor must be to be worth having.  `error` is the standard
    deviation of the logarithm of prediction over truth: 0 is an oracle, and with
    0.7 one in three is wrong by more than a factor of two.  The n-th request of
    an engine has the same error in every run with the same `seed`.  A job that
    has passed its prediction counts as if it were to end with its next token.

        scheduling_policy = {name = "srpt_predicted", error = 0.5, seed = 1}
    """

    error: float = field(default=0.5, validator=ge(0))
    seed: int = field(default=0, validator=ge(0))
    _factors: list[float] = field(factory=list, init=False, repr=False)
    _draws: np.random.Generator = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._draws = stream(self.seed, "scheduling.prediction")

    def order(self, job: Job) -> tuple[float, float, int]:
        return self.remaining(job), job.request.arrival, job.number

    def victim(self, running: Sequence[Job]) -> Job:
        return max(running, key=self.order)

    def remaining(self, job: Job) -> float:
        """Tokens that *job* is thought to have yet to compute, those of its output being a guess."""
        output = max(job.output * self._factor(job.number), job.sampled + 1)
        return job.request.prompt + output - job.num_computed_tokens

    def _factor(self, number: int) -> float:
        while number >= len(self._factors):
            self._factors += self._draws.lognormal(0.0, self.error, _BLOCK).tolist()
        return self._factors[number]
