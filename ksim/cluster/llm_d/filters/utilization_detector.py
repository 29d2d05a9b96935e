"""Engines that are not saturated: a short queue, room in the KV cache, and metrics that are not stale."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge, gt, le

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.llm_d.durations import seconds
from ksim.cluster.routers import EngineView

__all__ = ["UtilizationDetector"]


@frozen
class UtilizationDetector:
    """All engines, if all are saturated.  `headroom` raises both thresholds by that share.

    Source: llm-d-router, plugins/flowcontrol/saturationdetector/utilization (October 2026).  As the
    saturationDetector of a configuration, it holds back only what may be shed, which no request of ksim's says.
    """

    signals: ClassVar[tuple[str, ...]] = ("metrics",)
    queue_depth_threshold: int = field(default=5, validator=gt(0))
    kv_cache_util_threshold: float = field(default=0.8, validator=[gt(0), le(1)])
    metrics_staleness_threshold: float = field(default=0.2, converter=seconds, validator=gt(0))
    headroom: float = field(default=0.0, validator=ge(0))

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        queue, kv = (threshold * (1.0 + self.headroom)
                     for threshold in (self.queue_depth_threshold, self.kv_cache_util_threshold))
        oldest = cycle.now - self.metrics_staleness_threshold
        kept = [engine for engine in engines
                if engine.waiting < queue and engine.kv_usage < kv and engine.scraped_at >= oldest]
        return kept or engines
