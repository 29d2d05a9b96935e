"""A half without a queue, and less with one: none at `threshold` requests."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import field, frozen
from attrs.validators import gt

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView

__all__ = ["LoadAwareScorer"]


@frozen
class LoadAwareScorer:
    """Source: llm-d-router, scheduling/scorer/loadaware/load_aware.go (October 2026)."""

    signals: ClassVar[tuple[str, ...]] = ("metrics",)
    threshold: int = field(default=128, validator=gt(0))

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        return [0.5 * (1.0 - min(engine.waiting, self.threshold) / self.threshold) for engine in engines]
