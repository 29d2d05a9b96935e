"""Pickers of llm-d's endpoint picker: which engine it is."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import gt

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView

__all__ = ["MaxScorePicker", "RandomPicker", "WeightedRandomPicker"]


@frozen
class MaxScorePicker:
    """The engine with the best score; of equals, one by chance.

    llm-d turns the candidates, which come in an order by chance, on from pick to pick.

    Source: llm-d-router, scheduling/picker/maxscore/picker.go (October 2026).
    """

    max_num_of_endpoints: int = field(default=1, validator=gt(0))  # the first is the one that counts

    def pick(self, cycle: Cycle, engines: Sequence[EngineView], scores: Sequence[float]) -> EngineView:
        best = max(scores)
        if scores.count(best) == 1:
            return engines[scores.index(best)]
        equals = [engine for engine, score in zip(engines, scores, strict=True) if score == best]
        return equals[cycle.chance.below(len(equals))]


@frozen
class RandomPicker:
    """Any engine, whatever its score.

    Source: llm-d-router, scheduling/picker/random/picker.go (October 2026).
    """

    max_num_of_endpoints: int = field(default=1, validator=gt(0))

    def pick(self, cycle: Cycle, engines: Sequence[EngineView], scores: Sequence[float]) -> EngineView:
        return engines[cycle.chance.below(len(engines))]


@frozen
class WeightedRandomPicker:
    """An engine by chance, in proportion to the scores.

    Each engine with a score above 0 draws u from 0 to 1, and the largest u^(1/score) wins; any, if all have 0.

    Source: llm-d-router, scheduling/picker/weightedrandom/picker.go (October 2026), an A-Res sampling.
    """

    max_num_of_endpoints: int = field(default=1, validator=gt(0))

    def pick(self, cycle: Cycle, engines: Sequence[EngineView], scores: Sequence[float]) -> EngineView:
        if max(scores) <= 0:
            return engines[cycle.chance.below(len(engines))]
        keys = [max(cycle.chance.share(), 1e-10) ** (1.0 / score) if score > 0 else 0.0 for score in scores]
        return engines[keys.index(max(keys))]
