"""The engine with the best score; of equals, one by chance."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import gt

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView

__all__ = ["MaxScorePicker"]


@frozen
class MaxScorePicker:
    """llm-d turns the candidates, which come in an order by chance, on from pick to pick.

    Source: llm-d-router, scheduling/picker/maxscore/picker.go (October 2026).
    """

    max_num_of_endpoints: int = field(default=1, validator=gt(0))  # the first is the one that counts

    def pick(self, cycle: Cycle, engines: Sequence[EngineView], scores: Sequence[float]) -> EngineView:
        best = max(scores)
        if scores.count(best) == 1:
            return engines[scores.index(best)]
        equals = [engine for engine, score in zip(engines, scores, strict=True) if score == best]
        return equals[cycle.chance.below(len(equals))]
