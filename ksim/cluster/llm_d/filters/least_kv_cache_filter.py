"""Engines whose use of the KV cache is in the lowest part of the range, as many parts as there are engines."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView

__all__ = ["LeastKvCacheFilter"]


@frozen
class LeastKvCacheFilter:
    """Source: gateway-api-inference-extension 0.5.1, scheduling/framework/plugins/filter."""

    signals: ClassVar[tuple[str, ...]] = ("metrics",)

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        shares = [engine.kv_usage for engine in engines]
        most = min(shares) + (max(shares) - min(shares)) / len(shares)
        return [engine for engine in engines if engine.kv_usage <= most]
