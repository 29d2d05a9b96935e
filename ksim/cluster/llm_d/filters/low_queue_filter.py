"""Engines whose queue is no longer than `threshold`."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView

__all__ = ["LowQueueFilter"]


@frozen
class LowQueueFilter:
    """Source: gateway-api-inference-extension 0.5.1, pkg/epp/scheduling/framework/plugins/filter."""

    signals: ClassVar[tuple[str, ...]] = ("metrics",)
    threshold: int = field(default=128, validator=ge(0))

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        return [engine for engine in engines if engine.waiting <= self.threshold]
