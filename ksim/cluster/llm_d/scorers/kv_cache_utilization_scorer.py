"""1 less the share of the KV cache that is in use."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView

__all__ = ["KvCacheUtilizationScorer"]


@frozen
class KvCacheUtilizationScorer:
    """Source: llm-d-router, scheduling/scorer/kvcacheutilization/kvcache_utilization.go (October 2026)."""

    signals: ClassVar[tuple[str, ...]] = ("metrics",)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        return [1.0 - engine.kv_usage for engine in engines]
