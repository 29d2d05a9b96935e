"""A scheduling profile of llm-d's endpoint picker: filters, then scorers with weights, then a picker."""

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import V

__all__ = ["Bounded", "Profile"]


@frozen
class Profile:
    """Source: llm-d-router, pkg/epp/scheduling/scheduler_profile.go (October 2026).
    """

    filters: Sequence[Any]
    scorers: Sequence[tuple[float, Any]]
    picker: Any

    def run(self, cycle: Cycle, engines: Sequence[V]) -> tuple[V | None, Sequence[V], Sequence[float]]:
        """The engine that is picked, those that were scored, and their scores; no engine if filters leave none."""
        left: Sequence[V] = engines
        for part in self.filters:
            left = part.keep(cycle, left)
            if not left:
                return None, (), ()
        scores = self._scores(cycle, left)
        return self.picker.pick(cycle, left, scores), left, scores

    def _scores(self, cycle: Cycle, engines: Sequence[V]) -> Sequence[float]:
        totals = [0.0] * len(engines)
        scored = [(weight, scorer.score(cycle, engines)) for weight, scorer in self.scorers]
        for (weight, scores), (other, others) in zip(scored[::2], scored[1::2], strict=False):  # two at a time: faster
            totals = [total + weight * score + other * also
                      for total, score, also in zip(totals, scores, others, strict=False)]
        if len(scored) % 2:
            weight, scores = scored[-1]
            totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
        return totals


@frozen
class Bounded:
    """A scorer from outside ksim, whose scores are cut to the range from 0 to 1, as llm-d does with all."""

    scorer: Any

    def score(self, cycle: Cycle, engines: Sequence[V]) -> Sequence[float]:
        return [min(max(score, 0.0), 1.0) for score in self.scorer.score(cycle, engines)]
