"""Engines whose queue is in the lowest part of the range, as many parts as there are engines."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView

__all__ = ["LeastQueueFilter"]


@frozen
class LeastQueueFilter:
    """Source: gateway-api-inference-extension 0.5.1, scheduling/framework/plugins/filter/least_queue_filter.go."""

    signals: ClassVar[tuple[str, ...]] = ("metrics",)

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        queues = [engine.waiting for engine in engines]
        most = min(queues) + (max(queues) - min(queues)) // len(queues)
        return [engine for engine in engines if engine.waiting <= most]
