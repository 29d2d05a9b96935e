"""Any engine, whatever its score."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import gt

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView

__all__ = ["RandomPicker"]


@frozen
class RandomPicker:
    """Source: llm-d-router, scheduling/picker/random/picker.go (October 2026)."""

    max_num_of_endpoints: int = field(default=1, validator=gt(0))

    def pick(self, cycle: Cycle, engines: Sequence[EngineView], scores: Sequence[float]) -> EngineView:
        return engines[cycle.chance.below(len(engines))]
