"""An engine by chance, in proportion to the scores."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import gt

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView

__all__ = ["WeightedRandomPicker"]


@frozen
class WeightedRandomPicker:
    """Each engine with a score above 0 draws u from 0 to 1, and the largest u^(1/score) wins; any, if all have 0.

    Source: llm-d-router, scheduling/picker/weightedrandom/picker.go (October 2026), an A-Res sampling.
    """

    max_num_of_endpoints: int = field(default=1, validator=gt(0))

    def pick(self, cycle: Cycle, engines: Sequence[EngineView], scores: Sequence[float]) -> EngineView:
        if max(scores) <= 0:
            return engines[cycle.chance.below(len(engines))]
        keys = [max(cycle.chance.share(), 1e-10) ** (1.0 / score) if score > 0 else 0.0 for score in scores]
        return engines[keys.index(max(keys))]
