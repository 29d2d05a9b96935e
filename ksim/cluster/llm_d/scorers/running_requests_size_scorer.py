"""The fewer requests run, the better: 1 for the fewest, 0 for the most."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.llm_d.ranges import least_best
from ksim.cluster.routers import EngineView

__all__ = ["RunningRequestsSizeScorer"]


@frozen
class RunningRequestsSizeScorer:
    """Source: llm-d-router, scheduling/scorer/runningrequests/runningrequest.go (October 2026)."""

    signals: ClassVar[tuple[str, ...]] = ("metrics",)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        return least_best([engine.running for engine in engines])
