"""Engines that decode: those of role decode or both."""

from collections.abc import Sequence

from attrs import frozen

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView

__all__ = ["DecodeFilter"]


@frozen
class DecodeFilter:
    """Source: llm-d-router, scheduling/filter/bylabel/roles.go (October 2026)."""

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        return [engine for engine in engines if engine.role != "prefill"]
