"""Engines with at most `max_requests` of the router's requests."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import gt

from ksim.cluster.llm_d.cycle import IN_FLIGHT, Cycle
from ksim.cluster.routers import EngineView

__all__ = ["ActiveRequestFilter"]


@frozen
class ActiveRequestFilter:
    """Source: llm-d-router, scheduling/filter/activerequest/filter.go (October 2026)."""

    max_requests: int = field(validator=gt(0))
    fallback_on_empty: bool = False
    in_flight_load_producer_name: str = IN_FLIGHT

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        requests = cycle.loads[self.in_flight_load_producer_name].requests
        kept = [engine for engine in engines if requests.get(engine.number, 0) <= self.max_requests]
        return engines if not kept and self.fallback_on_empty else kept
