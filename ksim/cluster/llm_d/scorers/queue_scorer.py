"""The shorter its queue, the better: 1 for the shortest, 0 for the longest."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.llm_d.ranges import least_best
from ksim.cluster.routers import EngineView

__all__ = ["QueueScorer"]


@frozen
class QueueScorer:
    """Source: llm-d-router, pkg/epp/framework/plugins/scheduling/scorer/queuedepth/queue.go (October 2026)."""

    signals: ClassVar[tuple[str, ...]] = ("metrics",)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        return least_best([engine.waiting for engine in engines])
